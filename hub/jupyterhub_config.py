"""A JupyterHub for a workshop on one machine. Only this machine can reach it.

    npm install --prefix .venv/node configurable-http-proxy@5     # once; needs Node.js 18 or newer
    .venv/bin/pip install -c constraints.txt -e '.[lab,hub]' jupyterhub
    export DLTUTORIAL_HUB_PASSWORD=…                              # 12 characters or more, for the whole class
    .venv/bin/jupyterhub -f hub/jupyterhub_config.py

Each learner opens the link of the README's section "On a hub", with http://127.0.0.1:8000 instead of https://HUB. The
learner logs in with a name and the password, and gets the course in a folder of that name. Give the names out, because
two learners with the same name share one folder. ``DLTUTORIAL_HUB_PORT`` sets another port than 8000, and
``DLTUTORIAL_HUB_FOLDER`` sets another folder than runs/hub for the homes and the state of the hub.

This hub suits a class whose members trust each other: they have one password, and all servers run under the account
that starts the hub. For any other class, replace the authenticator and the spawner below:
https://jupyterhub.readthedocs.io/en/stable/reference/authenticators.html · …/reference/spawners.html
Learners reach the hub from other machines through a reverse proxy with TLS, or each through an ssh tunnel:
https://jupyterhub.readthedocs.io/en/stable/howto/configuration/config-proxy.html
"""

import os
import shutil
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("DLTUTORIAL_HUB_FOLDER") or COURSE / "runs" / "hub").absolute()
PORT = int(os.environ.get("DLTUTORIAL_HUB_PORT") or 8000)
SHORTEST_PASSWORD = 12
c = get_config()  # noqa: F821  JupyterHub defines it

# The proxy and the learners' servers inherit this environment, so the password is removed from it.
password = os.environ.pop("DLTUTORIAL_HUB_PASSWORD", "")
if len(password) < SHORTEST_PASSWORD:
    sys.exit(f"hub: DLTUTORIAL_HUB_PASSWORD has {len(password)} characters; export one of at least {SHORTEST_PASSWORD}")
search_path = os.pathsep.join([os.environ.get("PATH", ""), str(COURSE / ".venv" / "node" / "node_modules" / ".bin")])
proxy = shutil.which("configurable-http-proxy", path=search_path)
if proxy is None:
    sys.exit("hub: no configurable-http-proxy; run: npm install --prefix .venv/node configurable-http-proxy@5")
FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)

# The proxy, its own interface, the hub and the learners' servers listen on the loopback only.
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{PORT + 1}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{PORT + 2}"
c.ConfigurableHTTPProxy.command = [proxy]
c.ConfigurableHTTPProxy.pid_file = str(FOLDER / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{FOLDER / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(FOLDER / "cookie_secret")

# A learner who knows the password may log in under any name.
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = password
c.Authenticator.allow_all = True

# Each learner gets JupyterLab in a home folder, with this Python and therefore with this course.
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = str(FOLDER / "home" / "{username}")
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"] if os.getuid() == 0 else []  # JupyterLab does not start for root without it
c.Spawner.ip = "127.0.0.1"
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = c.Spawner.http_timeout = 120  # forty servers that start at once are slow
c.Spawner.env_keep.extend(["DLTUTORIAL_PRESET", "DLTUTORIAL_NODE", "OMP_NUM_THREADS", "SLURM_CONF"])
c.Spawner.environment = {
    "PYTHONSTARTUP": str(COURSE / "hub" / "startup.py"),
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "DLTUTORIAL_DATA": os.environ.get("DLTUTORIAL_DATA") or str(FOLDER / "data"),  # all learners read the same data
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait leave their core to other learners
    # The address at which %tensorboard shows its page; the slash at the end is necessary.
    "TENSORBOARD_PROXY_URL": lambda spawner: spawner.server.base_url + "proxy/%PORT%/",
}
