"""TensorBoard in the notebook, by one call: ``board.show(folder)``.

In: a run's folder, or a folder of runs. Out: a frame below the cell. TensorBoard runs in a thread of this process, so
it ends with the kernel; it listens on the loopback only, on a free port. It asks nobody for a password, and others on
the same machine may reach its port; so it answers only below a path that nobody can guess. On a hub, and in JupyterLab
with jupyter-server-proxy, the frame goes through the user's own server; without it the browser has to be on the same
machine. The slash at the end of an address matters: without it the frame stays blank.
"""

import functools
import importlib.util
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from markupsafe import Markup

from dltutorial.errors import CourseError


def show(folder: Path, height: int = 600) -> None:
    """Show TensorBoard with the runs below ``folder``; a second call takes the same board.

    Args:
        folder: a run's folder, or one that holds several; anybody's event files will do.
        height: of the frame, in pixels.

    Raises:
        CourseError: no events are there.
    """
    from IPython import get_ipython
    from IPython.display import HTML, display

    folder = Path(folder).absolute()
    if next(folder.glob("**/*tfevents*"), None) is None:
        do = "give the folder that holds some, or train with track=('tensorboard',) first"
        raise CourseError(f"no TensorBoard event files (*tfevents*) in {folder.name}/ or below; {do}")
    if getattr(get_ipython(), "kernel", None) is None:
        print(f"TensorBoard of {folder.name}: http://127.0.0.1:{start(folder)} (as long as this program runs)")
    elif "JPY_SESSION_NAME" not in os.environ:
        print(f"in JupyterLab TensorBoard appears here; else: tensorboard --logdir {os.path.relpath(folder)}")
    else:
        display(HTML(frame(address(start(folder)), folder.name, height)))


@functools.cache
def start(folder: Path) -> str:
    """Start TensorBoard for a folder; returns ``<port>/<secret>/``, where it answers on the loopback."""
    from tensorboard import program

    secret, board = secrets.token_urlsafe(24), program.TensorBoard()
    flags = ["--host=127.0.0.1", "--port=0", "--load_fast=false", "--reload_interval=5", f"--path_prefix=/{secret}"]
    board.configure(["", f"--logdir={folder}", *flags])
    return f"{urlsplit(board.launch()).port}/{secret}/"


def address(place: str) -> str:
    """Where a browser that shows this notebook finds the board at ``<port>/<secret>/``."""
    base = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/" if importlib.util.find_spec("jupyter_server_proxy") else "")
    through = os.environ.get("TENSORBOARD_PROXY_URL", f"{base}proxy/%PORT%/" if base else "http://127.0.0.1:%PORT%/")
    port, _, path = place.partition("/")
    return through.replace("%PORT%", port) + path


def frame(address: str, name: str, height: int) -> str:
    """The board in a frame, and its address in words, as HTML."""
    return Markup(
        '<iframe title="TensorBoard: {name}" src="{address}" width="100%" height="{height}" '
        'style="border:1px solid #8888"></iframe><div style="opacity:.85">TensorBoard of {name}: '
        '<a href="{address}" target="_blank">in a tab of its own</a>. It ends with this kernel.</div>'
    ).format(name=name, address=address, height=height)
