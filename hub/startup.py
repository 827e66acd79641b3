"""What a kernel runs first if ``PYTHONSTARTUP`` names this file: ``%%writefile`` then keeps what you have edited.

A chapter does the same in its first cells. This file helps a learner who restarts the kernel and then runs only a
later cell.
"""

try:
    from dltutorial.course.scripts import prepare
except ImportError:  # the kernel of another Python, which does not have the course
    pass
else:
    prepare()
    del prepare
