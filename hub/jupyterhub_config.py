"""A JupyterHub for a workshop on one machine. Nobody but this machine reaches it, unless you put a door before it.

    npm install --prefix .venv/node configurable-http-proxy@5     # once; needs Node.js 18 or newer
    .venv/bin/pip install -c constraints.txt -e '.[lab,hub]' jupyterhub
    export DLTUTORIAL_HUB_PASSWORD=…                              # 12 characters or more; tell it to the class
    .venv/bin/jupyterhub -f hub/jupyterhub_config.py

Then each learner opens the link of the README's section "On a hub" with http://127.0.0.1:8000 in place of https://HUB,
logs in with a name of their own and the password, and gets the course in a folder of their own. Who takes a name that
another has, in capitals or not, comes into the other's folder: give names out, such as those of the seats.

| variable | what it sets | default |
|---|---|---|
| DLTUTORIAL_HUB_PASSWORD | what all learners log in with | none: the hub does not start |
| DLTUTORIAL_HUB_PORT | where it listens, on 127.0.0.1 | 8000 |
| DLTUTORIAL_HUB_FOLDER | learners' homes and the hub's own state | runs/hub |

How far it protects: one password for all, and all servers run under the account that starts the hub. That is enough
for a class whose members trust each other, and for trying things out. For anything else keep this file and change two
lines: a real authenticator and a spawner that starts servers under accounts of their own, in containers or as jobs.
https://jupyterhub.readthedocs.io/en/stable/reference/authenticators.html · …/reference/spawners.html

To let others in, put a reverse proxy with TLS before it, or let each learner open an ssh tunnel:
https://jupyterhub.readthedocs.io/en/stable/howto/configuration/config-proxy.html
"""

import os
import shutil
import signal
import socket
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("DLTUTORIAL_HUB_FOLDER") or COURSE / "runs" / "hub").absolute()
SHORTEST_PASSWORD = 12
c = get_config()  # noqa: F821  JupyterHub defines it


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# JupyterHub ends its proxy at SIGTERM; at a closed terminal's SIGHUP it would die and leave it. nohup stays nohup.
if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))

# The environment of this process is not for the proxy and the learners' servers: take the password out of it.
password = os.environ.pop("DLTUTORIAL_HUB_PASSWORD", "")
if len(password) < SHORTEST_PASSWORD:
    sys.exit(f"hub: DLTUTORIAL_HUB_PASSWORD has {len(password)} characters; export one of at least {SHORTEST_PASSWORD}")
places = os.pathsep.join([os.environ.get("PATH", ""), str(COURSE / ".venv" / "node" / "node_modules" / ".bin")])
proxy = shutil.which("configurable-http-proxy", path=places)
if proxy is None:
    sys.exit("hub: no configurable-http-proxy; run: npm install --prefix .venv/node configurable-http-proxy@5")
try:
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
except OSError as error:
    sys.exit(f"hub: cannot make {FOLDER} ({error.strerror}); let DLTUTORIAL_HUB_FOLDER name a folder of your own")
port = os.environ.get("DLTUTORIAL_HUB_PORT") or "8000"
if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16):
    sys.exit(f"hub: DLTUTORIAL_HUB_PORT={port!r} is no port; take a number from 1024 to 65535")

# Everything listens on the loopback: the proxy, its own interface, the hub, the learners' servers.
c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{free_port()}"
c.ConfigurableHTTPProxy.command = [proxy]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{free_port()}"
c.ConfigurableHTTPProxy.pid_file = str(FOLDER / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{FOLDER / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(FOLDER / "cookie_secret")

# Who may come in: everybody who knows the password, under any name.
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = password
c.Authenticator.allow_all = True

# What they get: JupyterLab in a home of their own, with this Python, so with this course.
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = str(FOLDER / "home" / "{username}")
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"] if os.getuid() == 0 else []  # JupyterLab asks for this word, in a container say
c.Spawner.ip = "127.0.0.1"
c.Spawner.default_url = "/lab"
c.Spawner.http_timeout = c.Spawner.start_timeout = 120  # forty servers that start at once
c.Spawner.env_keep.extend(["DLTUTORIAL_PRESET", "DLTUTORIAL_NODE", "OMP_NUM_THREADS", "SLURM_CONF"])
c.Spawner.environment = {
    "PYTHONSTARTUP": str(COURSE / "hub" / "startup.py"),
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    # Simulated once, read by all.
    "DLTUTORIAL_DATA": os.environ.get("DLTUTORIAL_DATA") or str(FOLDER / "data"),
    # Threads that wait give their core away, to other learners.
    "OMP_WAIT_POLICY": "PASSIVE",
    # For %tensorboard; the course's own board.show finds its way by itself. The slash at the end matters.
    "TENSORBOARD_PROXY_URL": lambda spawner: spawner.server.base_url + "proxy/%PORT%/",
}
