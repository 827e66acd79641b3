"""What a kernel runs first if PYTHONSTARTUP names this file: from then on ``%%writefile`` keeps what you have edited.

A chapter does the same in its first cells. This is for whoever starts the kernel anew and runs a later cell alone.
"""

try:
    from dltutorial.course.scripts import prepare
except ImportError:  # another Python than the course's
    pass
else:
    prepare()
    del prepare
