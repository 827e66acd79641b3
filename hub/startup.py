"""What a kernel runs first if PYTHONSTARTUP names this file: from then on ``%%writefile`` keeps what you have edited.

A chapter does the same in its first cells. This is for whoever starts the kernel anew and runs a later cell alone. A
PYTHONSTARTUP of your own, which who starts the kernel hands on as ``DLTUTORIAL_STARTUP``, runs after it.
"""

try:
    from dltutorial.course.scripts import prepare
except ImportError:  # another Python than the course's
    pass
else:
    prepare()
    del prepare


def _own():
    import os
    from pathlib import Path

    own = os.environ.get("DLTUTORIAL_STARTUP", "")
    if Path(own).is_file() and not own.endswith("hub/startup.py"):
        exec(compile(Path(own).read_text(encoding="utf-8"), own, "exec"), globals())


_own()
del _own
