"""Below a traceback in a notebook: one sentence of what to do.

In: the exceptions that cells end with. Out: a box under those that ``dltutorial.advice`` knows; the traceback stays as
it is. An error of the course has its advice in its own words and gets none. Above an exercise: that a newer version of
it has come.
"""

import contextlib
import html
import os
import sys
from typing import Any

from dltutorial import advice
from dltutorial.course import exercise_status, show
from dltutorial.errors import CourseError


def watch() -> None:
    """From now on, a cell of this notebook that fails gets its sentence. Calling it again changes nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)


def tell_of_newer_version() -> None:
    """Say so in an exercise, open in JupyterLab, of which a newer version has come with the course."""
    with contextlib.suppress(CourseError):  # a solution that cannot be read concerns nobody here
        if told := exercise_status.notice(os.environ.get("JPY_SESSION_NAME")):
            show.display(sentence(told, "Newer version"))


def sentence(text: str, title: str = "What to do") -> show.Shown:
    """The box with one sentence of advice."""
    page = (
        f'<div class="dlt-advice" role="note" aria-label="{title.lower()}" style="border-left:4px solid {show.BLUE};'
        f'padding:.25em .8em;margin:.4em 0"><b>{title}</b><br>{html.escape(text)}</div>'
    )
    return show.Shown(page, f"{title}: {text}")


def _after_cell(result: Any) -> None:
    error = result.error_in_exec or result.error_before_exec
    found = advice.of(error) if error is not None else None
    if found:
        show.display(sentence(found.do))
