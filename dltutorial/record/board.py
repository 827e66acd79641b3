"""TensorBoard in the notebook, by one call: ``board.show(folder)``.

In: a run's folder, or a folder of runs. Out: a frame below the cell. TensorBoard runs in a process of its own,
``board_server``; it listens on the loopback only, on a free port, and ends when this process does. It asks nobody for a
password, and others on the same machine may reach its port; so it answers only below a path that nobody can guess.

Where the frame gets it from:

| the notebook runs | address |
|---|---|
| on a hub | ``<prefix of the user's server>proxy/<port>/…``, by jupyter-server-proxy |
| in JupyterLab with jupyter-server-proxy | ``<base>proxy/<port>/…``: through a tunnel, too, by the server's token |
| in JupyterLab without it | ``http://127.0.0.1:<port>/…``, so the browser has to be on the same machine |
| under papermill | nowhere: nobody looks. One line says how to see it |

Outside a notebook the address is printed. The slash at its end matters: without it the frame stays blank.
Source: https://jupyter-server-proxy.readthedocs.io/en/latest/arbitrary-ports-hosts.html
"""

import functools
import html
import itertools
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dltutorial.errors import CourseError

_START_S = 90.0  # a cold disk and busy cores may need most of it
_ASK_S = 5.0
_EVENTS = "**/events.out.tfevents.*"


@dataclass(frozen=True, eq=False)
class Board:
    """A TensorBoard that runs for this process.

    Attributes:
        folder: what it shows.
        port: on the loopback.
        path: below which it answers, with a slash at both ends.
    """

    folder: Path
    port: int
    path: str
    _process: subprocess.Popen

    @property
    def address(self) -> str:
        """For a browser on this machine."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    def is_running(self) -> bool:
        """Whether it still answers to this process."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@dataclass(frozen=True)
class Frame:
    """What a notebook shows: the board in a frame, and its address in words."""

    address: str
    folder: Path
    height: int

    def _repr_html_(self) -> str:
        address, name = html.escape(self.address, quote=True), html.escape(self.folder.name)
        return (
            f'<div class="dlt-board"><iframe title="TensorBoard: {name}" src="{address}" width="100%" '
            f'height="{self.height}" style="border:1px solid #8888"></iframe>'
            f'<div style="opacity:.85">TensorBoard of {name}: <a href="{address}" target="_blank">in a tab of its own'
            "</a>. It ends with this kernel.</div></div>"
        )

    def __repr__(self) -> str:
        return f"TensorBoard of {self.folder.name}: {self.address}"


def show(folder: Path, height: int = 600) -> None:
    """Show TensorBoard with the runs below ``folder``. A second call with the same folder takes the same board.

    Args:
        folder: a run's folder, or one that holds several.
        height: of the frame, in pixels.

    Raises:
        CourseError: no events are there, or TensorBoard does not start.
    """
    folder = checked(folder)
    if not _in_notebook():
        print(f"TensorBoard of {folder.name}: {start(folder).address} (as long as this program runs)")
    elif "JPY_SESSION_NAME" not in os.environ:
        where = os.path.relpath(folder)
        print(f"in JupyterLab TensorBoard appears here; from a terminal: tensorboard --logdir {where}")
    else:
        from IPython.display import display

        board = start(folder)
        display(Frame(address(board), folder, height))


def checked(folder: Path) -> Path:
    """The folder, if there is something to show.

    Raises:
        CourseError: no events are there.
    """
    folder = Path(folder).absolute()
    if next(folder.glob(_EVENTS), None) is None:
        raise CourseError(f"no TensorBoard events in {folder.name}/; train with track=('tensorboard',) first")
    return folder


def start(folder: Path) -> Board:
    """A board for this folder: the one that runs already, or a new one.

    Raises:
        CourseError: TensorBoard does not start.
    """
    folder = checked(folder)
    started = (_nth(folder, os.getpid(), number) for number in itertools.count())
    return next(board for board in started if board.is_running())


def address(board: Board, env: Mapping[str, str] | None = None) -> str:
    """Where a browser that shows this notebook finds the board; see the module's first lines."""
    env = os.environ if env is None else env
    proxied = f"proxy/{board.port}{board.path}"
    if prefix := env.get("JUPYTERHUB_SERVICE_PREFIX"):
        return prefix.rstrip("/") + "/" + proxied
    server = _own_server(env)
    if server and _answers(server["url"] + proxied, server.get("token", "")):
        return server.get("base_url", "/") + proxied
    return board.address


@functools.cache
def _nth(folder: Path, pid: int, number: int) -> Board:
    """The first board of this process for this folder; the next, once that has ended; and so on."""
    path = f"/{secrets.token_urlsafe(24)}/"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dltutorial.record.board_server", str(folder)],
            env=os.environ | {"DLTUTORIAL_BOARD_PATH": path.rstrip("/")},  # a command line can be read by others
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            start_new_session=True,  # an interrupted cell does not end it
        )  # fmt: skip
        readable, _, _ = select.select([process.stdout], [], [], _START_S)
        said = process.stdout.readline().strip() if readable else b""
        if said.isdigit():
            return Board(folder, int(said), path, process)
        process.kill()
        process.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    why = lines[-1] if lines else f"no answer after {_START_S:g} s"
    raise CourseError(f"TensorBoard did not start: {why}; try it in a terminal: tensorboard --logdir {folder.name}")


def _own_server(env: Mapping[str, str]) -> dict | None:
    """What the Jupyter server that started this kernel wrote about itself, if it can be found."""
    if not env.get("JPY_PARENT_PID", "").isdigit():
        return None
    from jupyter_core.paths import jupyter_runtime_dir

    try:
        found = json.loads((Path(jupyter_runtime_dir()) / f"jpserver-{env['JPY_PARENT_PID']}.json").read_text())
        return found if isinstance(found.get("url"), str) else None
    except (OSError, ValueError, AttributeError):
        return None


def _answers(url: str, token: str) -> bool:
    """Whether the server hands the board on: it does where jupyter-server-proxy is installed."""
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
