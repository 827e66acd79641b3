"""``dltutorial kernel check``: start an installed kernel as a hub would, and say what it has and what is wrong.

In: a kernel's name. Out: a table, and an exit status. The kernel is started for real, by Jupyter's own client, through
its helper script with modules and container; then ``kernel_probe`` answers inside it, and two ranks are started there.
"""

import contextlib
import json
import tempfile
from queue import Empty
from typing import Any

from dltutorial.course.kernel_probe import MARK, Row
from dltutorial.errors import CourseError

_PROBE = "from dltutorial.course import kernel_probe; kernel_probe.tell()"
_RANKS = ("%load_ext dltutorial.launch.cells", "%%ranks 2 --timeout 60\nrank", "%ranks --stop")
_ADVICE = "install the course into this kernel's Python or image: pip install -e ."


def check(name: str, timeout_s: float = 180.0) -> tuple[str, int]:
    """The table, and 0 if nothing is wrong, else 1.

    Args:
        name: of an installed kernel.
        timeout_s: how long the kernel may take to start, and each question.

    Raises:
        CourseError: there is no such kernel, or it does not start.
    """
    with _started(name, timeout_s) as kernel:
        rows = _asked(kernel, timeout_s)
        if rows and not any(problem for _, _, problem in rows):
            rows.append(_ranks(kernel, timeout_s, is_login="a login node" in dict(r[:2] for r in rows)["runs on"]))
    width = max(len(what) for what, _, _ in rows)
    table = [f"  {what:{width}}  {here}" for what, here, _ in rows]
    problems = [f"  {what}: {problem}" for what, _, problem in rows if problem]
    ending = ["Wrong:", *problems] if problems else ["The kernel works."]
    return "\n".join([f"Kernel {name}", *table, "", *ending]), int(bool(problems))


@contextlib.contextmanager
def _started(name: str, timeout_s: float) -> Any:
    """A client of the kernel, for the length of the block."""
    from jupyter_client import KernelManager
    from jupyter_client.kernelspec import NoSuchKernel

    manager = KernelManager(kernel_name=name)
    with tempfile.TemporaryFile() as log:
        try:
            manager.start_kernel(stdout=log, stderr=log)
        except NoSuchKernel:
            raise CourseError(f"no kernel {name!r}; install it: dltutorial kernel install --name {name}") from None
        except OSError as error:
            raise CourseError(f"kernel {name} cannot be started: {error}; install it again") from None
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=timeout_s)
            yield client
        except RuntimeError as error:  # jupyter_client's word for a kernel that died or is silent
            raise CourseError(f"kernel {name} does not start: {_last_line(log) or error}") from None
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def _last_line(log: Any) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _asked(client: Any, timeout_s: float) -> list[Row]:
    """What the probe says, or why it cannot."""
    said, error = _run(client, _PROBE, timeout_s)
    for line in said.splitlines():
        if line.startswith(MARK):
            return [tuple(row) for row in json.loads(line.removeprefix(MARK))]
    return [("dltutorial", "not available", f"does not load ({error or 'no answer'}); {_ADVICE}")]


def _ranks(client: Any, timeout_s: float, is_login: bool) -> Row:
    """Whether two ranks answer. A login node refuses them, as it should."""
    if is_login:
        return "%%ranks", "not here: a launch is sent to Slurm", ""
    problems = [error for _, error in [_run(client, code, timeout_s) for code in _RANKS] if error]
    return "%%ranks", "no" if problems else "2 ranks answered", problems[0] if problems else ""


def _run(client: Any, code: str, timeout_s: float) -> tuple[str, str]:
    """What a cell prints, and the first line of its error, if any."""
    said: list[str] = []

    def listen(message: dict) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    try:
        reply = client.execute_interactive(code, timeout=timeout_s, output_hook=listen)["content"]
    except (TimeoutError, Empty):
        return "".join(said), f"no answer after {timeout_s:g} s"
    error = "" if reply["status"] == "ok" else f"{reply.get('ename')}: {reply.get('evalue')}".splitlines()[0]
    return "".join(said), error
