"""A job under your eyes: its state, its place, how long it has run, the end of its log, and a button that cancels it.

In: a ``jobs.Job``. Out: a panel that follows it while it runs, with the same words as plain text for pages without a
kernel. Asking costs Slurm's controller work, so it asks every two seconds and stops when the job is over.
"""

import html
import threading

from dltutorial.course import show
from dltutorial.errors import CourseError
from dltutorial.launch import job_output, jobs

_EVERY_S, _LINES = 2.0, 6


class Panel:
    """Shows a job. ``update()`` asks now; a live notebook asks by itself too."""

    def __init__(self, job: jobs.Job) -> None:
        """Show it, and follow it until it is over."""
        self.job = job
        self._over = threading.Event()
        self._handle = show.display(show.line((f"job {job.number}", "submitted")), display_id=True)
        if show.in_notebook():
            import ipywidgets

            button = ipywidgets.Button(description="cancel", tooltip=f"scancel {job.number}")
            button.on_click(lambda _: self.cancel())
            show.display(button)
            threading.Thread(target=self._follow, daemon=True).start()

    def update(self) -> jobs.State | None:
        """Ask how the job does, and show it; None if Slurm does not answer."""
        try:
            now = jobs.state(self.job)
        except CourseError as error:
            self._show(show.line((str(error), "")))
            return None
        self._show(picture(self.job, now))
        if now.is_over:
            self._over.set()
        return now

    def cancel(self) -> None:
        """End the job."""
        try:
            jobs.cancel(self.job)
        except CourseError as error:
            self._show(show.line((str(error), "")))
            return
        self.update()

    def _show(self, what: show.Shown) -> None:
        if self._handle is not None:
            self._handle.update(what)
        else:  # a terminal, where nothing that was printed changes
            show.display(what)

    def _follow(self) -> None:
        while not self._over.wait(_EVERY_S):
            if self.update() is None:
                return


def picture(job: jobs.Job, now: jobs.State) -> show.Shown:
    """What is known of the job, as a line and the end of its log."""
    facts = [(f"job {job.number}", now.word + (f" ({now.reason})" if now.reason else "")), ("for", now.elapsed)]
    facts += [("on", now.nodes)] if now.nodes else []
    facts += [("queued again", f"{now.restarts} ×")] if now.restarts else []
    line, log = show.line(*facts), "\n".join(job_output.tail(job, _LINES))
    page = f'<pre style="margin:.3em 0;max-height:9em;overflow:auto">{html.escape(log)}</pre>' if log else ""
    return show.Shown(line.html + page, "\n    ".join([line.text, *log.splitlines()]))
