"""``dltutorial class view``: the class's folder as one page, once or again and again.

In: the folder. Out: an HTML file, written whole or not at all; a browser that shows it loads it again by itself while
it is being watched. Nothing is served and nothing is sent.
"""

import sys
import time
from pathlib import Path

from dltutorial import paths
from dltutorial.course.classroom import folder as folders
from dltutorial.course.classroom import room, room_page
from dltutorial.course.classroom.wording import Wording, of_course
from dltutorial.errors import CourseError

_LEAST_S, _MOST_S = 1.0, 3600.0


def write(folder: Path, out: Path | None = None, words: Wording | None = None, refresh_s: float | None = None) -> Path:
    """Write the page of the class as it is now; returns where it is.

    Args:
        folder: that the class shares.
        out: the file; None: ``class.html`` in the runs folder.
        words: the course's; None: looked up in the notebooks here.
        refresh_s: how often a browser is to load it again; None: never.

    Raises:
        CourseError: no such folder, or the page cannot be written.
    """
    out = paths.runs_dir() / "class.html" if out is None else Path(out)
    now_s = time.time()
    learners, problems = folders.read(folder, now_s)
    seen = room.look(learners, problems, now_s)
    paths.write_text(out, room_page.page(seen, words or of_course(), refresh_s))
    return out


def watch(folder: Path, out: Path | None, every_s: float) -> None:
    """Write the page again and again, until interrupted; what goes wrong after the first time is only told.

    Raises:
        CourseError: as :func:`write`, the first time; or ``every_s`` is not from a second to an hour.
    """
    if not _LEAST_S <= every_s <= _MOST_S:
        raise CourseError(f"--watch {every_s:g}: give seconds from {_LEAST_S:g} to {_MOST_S:g}")
    words = of_course()
    print(f"{write(folder, out, words, every_s)}, again every {every_s:g} s; Ctrl-C ends it", flush=True)
    while True:
        time.sleep(every_s)
        try:
            write(folder, out, words, every_s)
        except CourseError as error:  # a shared disk that is away for a moment must not end it
            print(f"{time.strftime('%H:%M')} the page is as it was: {error}", file=sys.stderr, flush=True)
