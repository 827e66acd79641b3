"""Install the course as a kernel of a site's JupyterHub, and check that this kernel starts.

    export SBATCH_ACCOUNT=…                    # slurm/sites/perlmutter.sh needs it
    python hub/kernel.py install --user --site perlmutter
    python hub/kernel.py check

The hub starts the kernel through ``hub/start_kernel.sh``. This script reads from ``slurm/sites/<site>.sh`` which
modules, network and container to use. A machine that has no such file needs only
``python -m ipykernel install --user --name dltutorial``. The command ``jupyter kernelspec remove dltutorial`` removes a
kernel of either kind.

Source: https://jupyter-client.readthedocs.io/en/stable/kernels.html, "kernel specs".
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.manager import start_new_kernel

COURSE = Path(__file__).resolve().parents[1]
SITES = sorted(file.stem for file in (COURSE / "slurm" / "sites").glob("*.sh"))
# The files of the sites and the course read these variables. A hub may not set them, so kernel.json stores them.
SITE_VARIABLES = [
    *("SBATCH_ACCOUNT", "SCRATCH", "MEMBERWORK", "SLURM_CONF"),
    *("DLTUTORIAL_IMAGE", "DLTUTORIAL_CONTAINER", "DLTUTORIAL_PYTHON", "DLTUTORIAL_RUNS", "DLTUTORIAL_DATA"),
    "DLTUTORIAL_PRESET",
]
START_TIMEOUT_S = 180
REPORT = """
import torch, dltutorial, dltutorial.node
node = "a login node" if dltutorial.node.login_sign() else "a compute node or your own machine"
print(f"dltutorial {dltutorial.__version__}, torch {torch.__version__}, {torch.cuda.device_count()} GPUs, on {node}")
"""


def install(name: str, site: str, user: bool, prefix: str | None) -> None:
    """Write ``kernel.json`` into a folder in which Jupyter looks for kernels. An older kernel of this name is replaced.

    Args:
        name: the name by which Jupyter knows the kernel.
        site: the name of a file in ``slurm/sites`` without ``.sh``. The kernel uses the settings in this file.
        user: install into the user's own folder.
        prefix: install into ``prefix/share/jupyter/kernels``. It must be None if ``user`` is true.
    """
    spec = {
        "argv": [str(COURSE / "hub" / "start_kernel.sh"), site, sys.executable, "-f", "{connection_file}"],
        "display_name": f"{name} ({site})",
        "env": {variable: os.environ[variable] for variable in SITE_VARIABLES if variable in os.environ},
    }
    with tempfile.TemporaryDirectory() as folder:
        source = write_kernel_spec(Path(folder) / name, overrides=spec)
        target = KernelSpecManager().install_kernel_spec(source, name, user=user, prefix=prefix)
    print(f"installed {target}; try it: python hub/kernel.py check --name {name}")


def check(name: str) -> str:
    """Start the kernel as a hub does, and run one cell in it.

    Args:
        name: the name by which Jupyter knows the kernel.

    Returns:
        One line with the versions of the course and of torch, the number of GPUs, and the kind of node.

    Raises:
        SystemExit: the kernel is not installed, does not start, or cannot import the course.
    """
    with tempfile.TemporaryFile("w+") as log:
        try:
            manager, client = start_new_kernel(START_TIMEOUT_S, name, stdout=log, stderr=log)
        except NoSuchKernel:
            sys.exit(f"there is no kernel {name}; install it: python hub/kernel.py install --name {name} --site SITE")
        except RuntimeError as error:  # the kernel has ended, or it does not answer
            log.seek(0)
            sys.exit(f"kernel {name} does not start: {(log.read().strip() or str(error)).splitlines()[-1]}")
    printed = []
    reply = client.execute_interactive(REPORT, timeout=START_TIMEOUT_S, output_hook=printed.append)["content"]
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    if reply["status"] == "error":
        sys.exit(f"kernel {name} starts, but it cannot run the course: {reply['ename']}: {reply['evalue']}")
    return f"kernel {name} works: " + "".join(message["content"].get("text", "") for message in printed).strip()


def main() -> None:
    """Read the command line, and install or check the kernel."""
    parser = argparse.ArgumentParser(description="The course as a kernel of a site's JupyterHub.")
    parser.add_argument("action", choices=["install", "check"])
    parser.add_argument("--name", default="dltutorial", help="the kernel's name (default: dltutorial)")
    parser.add_argument("--site", choices=SITES, help="the site whose settings the kernel uses; install needs it")
    parser.add_argument("--user", action="store_true", help="install into your own folder (default)")
    parser.add_argument("--prefix", metavar="DIR", help="install into DIR/share/jupyter/kernels")
    args = parser.parse_args()
    if args.action == "check":
        print(check(args.name))
    elif args.site:
        install(args.name, args.site, user=not args.prefix, prefix=args.prefix)
    else:
        parser.error(f"install needs --site, one of {', '.join(SITES)}")


if __name__ == "__main__":
    main()
