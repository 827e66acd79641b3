"""Show TensorBoard in the notebook with one call: ``board.show(folder)``.

Input: the folder of a run, or a folder of runs.
Output: a frame below the cell.

TensorBoard runs in a thread of this process, so it ends with the kernel. It listens on a free port of the loopback.
It has no password, but other users of the machine may reach its port. Therefore it answers only below a secret path.

On a hub, and in JupyterLab with jupyter-server-proxy, the frame goes through the user's own server. Otherwise the
browser must run on the same machine. Each address ends with a slash, because without it the frame stays empty.

Source: the documentation of TensorBoard and of jupyter-server-proxy.
"""

import functools
import importlib.util
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from markupsafe import Markup

from dltutorial.errors import CourseError


def show(folder: Path) -> None:
    """Show TensorBoard with the runs below ``folder``. A second call shows the same board.

    Args:
        folder: The folder of a run, or one that holds several runs. The event files may come from any program.

    Raises:
        CourseError: There are no event files.
    """
    from IPython.display import HTML, display

    folder = Path(folder).absolute()
    if next(folder.glob("**/*tfevents*"), None) is None:
        todo = "give the folder that holds some, or train with --track tensorboard first"
        raise CourseError(f"no TensorBoard event files (*tfevents*) in {folder.name}/ or below; {todo}")
    if "JPY_SESSION_NAME" in os.environ:
        display(HTML(frame(address(start(folder)), folder.name)))
    else:  # a program such as papermill runs the notebook, and no browser shows it
        print(f"in JupyterLab TensorBoard appears here; else: tensorboard --logdir {os.path.relpath(folder)}")


@functools.cache
def start(folder: Path) -> str:
    """Start TensorBoard for a folder.

    Returns:
        ``<port>/<secret>/``, where TensorBoard answers on the loopback.
    """
    from tensorboard import program

    secret = secrets.token_urlsafe(24)
    board = program.TensorBoard()
    board.configure(
        [
            "tensorboard",
            f"--logdir={folder}",
            "--host=127.0.0.1",
            "--port=0",
            "--load_fast=false",
            "--reload_interval=5",
            f"--path_prefix=/{secret}",
        ]
    )
    return f"{urlsplit(board.launch()).port}/{secret}/"


def address(place: str) -> str:
    """Return the address at which the browser of this notebook reaches a board.

    Args:
        place: ``<port>/<secret>/``, from :func:`start`.

    Returns:
        An address on the user's own server if it can forward requests. Otherwise it is one on this machine.
    """
    on_hub = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if on_hub:
        return f"{on_hub}proxy/{place}"
    if importlib.util.find_spec("jupyter_server_proxy"):
        return f"/proxy/{place}"
    return f"http://127.0.0.1:{place}"


def frame(address: str, name: str) -> str:
    """Return the HTML of a frame with the board, and of its address below the frame.

    Args:
        address: The address for the browser.
        name: The name of the folder.
    """
    return Markup(
        '<iframe title="TensorBoard: {name}" src="{address}" width="100%" height="600" '
        'style="border:1px solid #8888"></iframe><div style="opacity:.85">TensorBoard of {name}: '
        '<a href="{address}" target="_blank">in a tab of its own</a>. It ends with this kernel.</div>'
    ).format(name=name, address=address)
