#!/usr/bin/env python3
"""The course as a kernel of a site's JupyterHub: what the hub starts when a learner chooses *dltutorial*.

``python hub/kernel.py install --user --site perlmutter`` writes ``kernel.json`` and a helper script and lets Jupyter
put them in place; ``python hub/kernel.py check`` starts the kernel as a hub would and says what it has and what is
wrong. ``jupyter kernelspec list`` and ``jupyter kernelspec remove dltutorial`` do the rest.

A hub starts kernels without a login shell, so the helper script loads modules, takes a site's settings and enters its
container before Python starts; that is what the sites recommend:

- NERSC: https://docs.nersc.gov/services/jupyter/how-to-guides/, "customize a kernel with a helper shell script" and
  "shifter"
- JSC: https://docs.jupyter-jsc.fz-juelich.de/github/FZJ-JSC/jupyter-jsc-notebooks/
- https://jupyter-client.readthedocs.io/en/stable/kernels.html, "kernel specs": ``{resource_dir}``

A kernel installed for a site calls every node outside a job a login node (``dltutorial.node``).
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from queue import Empty

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

COURSE = Path(__file__).resolve().parents[1]
SITES = COURSE / "slurm" / "sites"
DEMANDED = re.compile(r'^: "\$\{(\w+):\?(.*)\}"', re.MULTILINE)  # what a site's file stops without
HELPER = "kernel-helper.sh"
# Environment modules and Lmod define it in the profile: https://lmod.readthedocs.io/en/latest/030_installing.html
MODULE_COMMAND = """\
# The command `module` is a function of login shells, which a hub does not start.
if ! type module >/dev/null 2>&1 && [ -r /etc/profile ]; then
    before=$PATH
    source /etc/profile >&2
    PATH="$PATH:$before"
fi"""
START = """\
# Threads that wait give their core away.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
export DLTUTORIAL_STARTUP="${PYTHONSTARTUP:-}" PYTHONSTARTUP="$course/hub/startup.py"
read -r -a words <<<"${DLTUTORIAL_CONTAINER:-}"
exec "${words[@]}" "${DLTUTORIAL_PYTHON:-$python}" -m ipykernel_launcher "$@"
"""
# Asked inside the kernel, each by itself. No assert: PYTHONOPTIMIZE would leave it out.
QUESTIONS = {
    "dltutorial": "from dltutorial import cli, machine, node",
    "doctor": "status = cli.main(['doctor'])",
    "course": "if status: raise RuntimeError('the doctor says what is missing')",
    "device": """
import os
in_job = os.environ.get("SLURM_GPUS_ON_NODE") or os.environ.get("SLURM_JOB_GPUS")
told = "this job has GPUs, but torch sees none: a build for CPUs, or a container without --nv"
if in_job and not machine.accelerators():
    raise RuntimeError(told)""",
    "Slurm": """
import shutil
told = "sbatch is not on this kernel's PATH, so nothing can be sent; work on a compute node instead"
if node.login_sign() and not shutil.which("sbatch"):
    raise RuntimeError(told)""",
    "ranks": """
from dltutorial.launch import launch
if node.login_sign():
    print("Ranks: not on a login node; a job starts them")
else:
    print("Ranks:", len(launch(os.getpid, 2, timeout_s=60)), "answered")""",
}


def main(words: list[str] | None = None) -> int:
    """Install or check, as asked; returns the exit status.

    Raises:
        SystemExit: with one line of what cannot be done.
    """
    parser = argparse.ArgumentParser(description="The course as a kernel of a JupyterHub.")
    parser.add_argument("action", choices=["install", "check"])
    parser.add_argument("--name", default="dltutorial", help="default: dltutorial; python3: what the notebooks ask for")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--prefix", metavar="DIR", help="install into DIR/share/jupyter/kernels")
    place.add_argument("--sys-prefix", dest="prefix", action="store_const", const=sys.prefix, help="into this Python's")
    place.add_argument("--user", action="store_true", help="into your own folder: the default")
    parser.add_argument("--site", choices=sorted(file.stem for file in SITES.glob("*.sh")), help="take its settings")
    parser.add_argument("--modules", metavar="'A B'", default="", help="load these, too")
    parser.add_argument("--container", metavar="WORDS", default="", help="before python: 'apptainer exec --nv c.sif'")
    parser.add_argument("--python", metavar="FILE", help="default: this one; in a container: python")
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="of check: seconds to wait for it")
    args = parser.parse_args(words)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", args.name):
        sys.exit(f"--name {args.name!r}: small letters, digits, '.', '_' and '-' only; choose another")
    if not 1 <= args.timeout <= 86_400:
        sys.exit(f"--timeout {args.timeout:g}: give seconds, from 1 to 86,400")
    try:
        Path.home()
    except RuntimeError:
        sys.exit(
            "this user has no home folder, where Jupyter keeps its settings; set HOME to a folder that you may write to"
        )
    return check(args.name, args.timeout) if args.action == "check" else install(args)


def install(args: argparse.Namespace) -> int:
    """Write the kernel, in place of an older one of the course.

    Raises:
        SystemExit: a kernel of that name that is not the course's, or a folder that cannot be written.
    """
    helper, manager = script(args), KernelSpecManager()
    prefix = args.prefix and Path(args.prefix).absolute()
    kernels = prefix / "share" / "jupyter" / "kernels" if prefix else Path(manager.user_kernel_dir)
    spec = {
        "argv": [f"{{resource_dir}}/{HELPER}", "-f", "{connection_file}"],
        "display_name": "dltutorial" + (f" ({args.site})" if args.site else ""),
        "language": "python",
        "metadata": {"debugger": True, "dltutorial": {"site": args.site}},
    }
    there = kernels / args.name
    if os.path.lexists(there) and (there.is_symlink() or not is_ours(there)):
        sys.exit(f"{there} holds a kernel that is not the course's; choose another --name, or remove it")
    try:
        there.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kernels.parent) as folder:  # whole, or the older kernel stays
            for name, text in {"kernel.json": json.dumps(spec, indent=1) + "\n", HELPER: helper}.items():
                Path(folder, name).write_text(text)
                Path(folder, name).chmod(0o755 if name == HELPER else 0o644)
            for name in (HELPER, "kernel.json"):
                Path(folder, name).replace(there / name)
    except OSError as error:
        sys.exit(f"cannot write {error.filename or there}: {error.strerror}; make room, or choose another --prefix")
    print(f"installed {there}")
    if str(kernels) not in manager.kernel_dirs:
        print(f"Jupyter does not look there by itself: export JUPYTER_PATH={kernels.parent}")
    print(f"try it: python hub/kernel.py check --name {args.name}")
    return 0


def is_ours(folder: Path) -> bool:
    """Whether a kernel's folder holds what ``install`` writes, and nothing else."""
    try:
        names = {file.name for file in folder.iterdir()}
        spec = folder / "kernel.json"
        about = json.loads(spec.read_text(encoding="utf-8")) if spec.is_file() else {}
        return not names or (names <= {HELPER, spec.name} and "dltutorial" in dict(about["metadata"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def script(args: argparse.Namespace) -> str:
    """The helper script: site, modules, container, then the kernel.

    Raises:
        SystemExit: a setting that the site demands and nobody has set, or a container that nobody knows how to start.
    """
    file = SITES / f"{args.site}.sh"
    site, lines = file.read_text(encoding="utf-8") if args.site else "", []
    for name, what in DEMANDED.findall(site):  # taken as they are now, unless set then
        if not os.environ.get(name):
            sys.exit(f"site {args.site} needs {name}: {what}; then install again")
        lines.append(f'[ -n "${{{name}:-}}" ] || export {name}={shlex.quote(os.environ[name])}')
    python = args.python
    if python and os.sep in python and not args.container:  # a kernel starts in the notebook's folder, not in this one
        python = str(Path(python).absolute())
    knows_images = re.search(r"^[^#\n]*DLTUTORIAL_IMAGE", site, re.MULTILINE)
    if args.container and (not args.container.strip() or re.search(r"[\"'\\\n$*?]|(^|\s)~", args.container)):
        sys.exit("--container is taken word by word, in one line; no word may hold a blank, a quote, or $ * ? and ~")
    words = [absolute(word) for word in args.container.split()]
    for word in (absolute(args.container), *words):
        if " " in word and is_there(word):
            sys.exit(f"{word} has a blank in its name; link it under another one, and give the whole command")
    container = " ".join(words)
    is_image = len(args.container.split()) == 1
    if is_image and not knows_images:
        given = f"'apptainer exec --nv {args.container}'"
        sys.exit(f"{args.container} is an image alone; give the whole command, such as --container {given}")
    if is_image:
        lines.append(f"export DLTUTORIAL_IMAGE={shlex.quote(container)}")
    if args.site and args.site != "pocket":  # whose login node is somebody's own machine
        lines.append('export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"')
    if args.site:
        lines.append(f"source {shlex.quote(str(file))} >&2")
    if args.modules:
        lines.append(f"module load {shlex.join(args.modules.split())}")
    if args.container and not is_image:
        lines.append(f"export DLTUTORIAL_CONTAINER={shlex.quote(container)} DLTUTORIAL_PYTHON=python")
    if python:
        lines.append(f"export DLTUTORIAL_PYTHON={shlex.quote(python)}")
    if args.container or args.python:  # which need not have the course installed
        lines.append(f'export PYTHONPATH={shlex.quote(str(COURSE))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    head = "# Made by hub/kernel.py: install it again, do not edit it."
    before = [MODULE_COMMAND] if args.site or args.modules else []
    this = f"python={shlex.quote(sys.executable)} course={shlex.quote(str(COURSE))}"
    return "\n".join(["#!/bin/bash", head, *before, "set -eo pipefail", *lines, this, START])


def absolute(word: str) -> str:
    """A file's whole name, since a kernel starts in its notebook's folder; any other word as it is."""
    return str(Path(word).absolute()) if is_there(word) else word


def is_there(file: str) -> bool:
    """Whether there is such a file; of a name that is too long there is none."""
    try:
        return Path(file).is_file()
    except OSError:
        return False


def check(name: str, timeout_s: float) -> int:
    """Start a kernel through Jupyter's own client and ask it; returns 0 if nothing is wrong, else 1.

    Raises:
        SystemExit: there is no such kernel, or it does not start.
    """
    manager, problems = KernelManager(kernel_name=name), []
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            manager.start_kernel(stdout=log, stderr=log)
        except NoSuchKernel:
            sys.exit(f"no kernel {name!r}; install it: python hub/kernel.py install --name {name}")
        except Exception as error:  # a damaged kernel.json raises whatever comes of it
            why = str(error).partition("\n")[0] or type(error).__name__
            sys.exit(f"kernel {name} cannot be started: {why}; install it again")
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=timeout_s)
            for what, question in QUESTIONS.items():
                if problem := ask(client, question, timeout_s):
                    problems.append(f"  {what}: {problem}")
                if what == "dltutorial" and problems:
                    problems[0] += "; install the course into this kernel's Python or image: pip install -e ."
                    break
        except RuntimeError as error:  # jupyter_client's word for a kernel that died or is silent
            log.seek(0)
            said = [line.strip() for line in log if line.strip()]
            sys.exit(f"kernel {name} does not start: {said[-1] if said else error}")
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    print("\n".join(["", "Wrong:", *problems] if problems else ["", f"Kernel {name} works."]))
    return int(bool(problems))


def ask(client: object, question: str, timeout_s: float) -> str:
    """Run a cell, whose words are printed here; the first line of its error, if any."""

    def listen(message: dict) -> None:
        if message["msg_type"] == "stream":
            print(message["content"]["text"], end="")

    try:
        reply = client.execute_interactive(question, timeout=timeout_s, output_hook=listen)["content"]
    except (TimeoutError, Empty):
        return f"no answer after {timeout_s:g} s"
    if reply["status"] == "ok":
        return ""
    return f"{reply['ename']}: {reply['evalue']}".removeprefix("RuntimeError: ").splitlines()[0]


if __name__ == "__main__":
    sys.stdout, sys.stderr = (one or open(os.devnull, "w") for one in (sys.stdout, sys.stderr))  # noqa: SIM115 (closed)
    sys.stdout.reconfigure(errors="backslashreplace")  # what a locale lacks must not end it
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:  # of a full disk, or because nobody reads what it says
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"kernel: {error.strerror or error}; see that there is room, and that its words can be printed")
    except KeyboardInterrupt:  # a kernel that was started has been shut down
        sys.exit("stopped")
    sys.exit(status)
