"""The course as a kernel of somebody's JupyterHub: what the hub starts when a learner chooses *dltutorial*.

In: where to put it, a site, modules, a container. Out: a folder with ``kernel.json`` and ``kernel-helper.sh``, put in
place by Jupyter's own ``KernelSpecManager``. A hub starts kernels without a login shell, so the script beside
``kernel.json`` loads modules, takes a site's settings and enters its container before Python starts; that is what the
sites recommend:

- NERSC: https://docs.nersc.gov/services/jupyter/how-to-guides/, "customize a kernel with a helper shell script" and
  "shifter"
- JSC: https://docs.jupyter-jsc.fz-juelich.de/github/FZJ-JSC/jupyter-jsc-notebooks/
- https://jupyter-client.readthedocs.io/en/stable/kernels.html, "kernel specs": ``{resource_dir}``

A kernel installed for a site calls every node outside a job a login node (``dltutorial.node``).
"""

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import __version__, paths
from dltutorial.errors import CourseError
from dltutorial.launch import sites

NAME = "dltutorial"
_VALID = re.compile(r"[a-z0-9][a-z0-9._-]*")
_MODULE = re.compile(r"[\w./+:-]+")
_DEMANDED = re.compile(r'^: "\$\{(\w+):\?(.*)\}"', re.MULTILINE)  # what a site's file stops without
_HELPER = "kernel-helper.sh"


@dataclass(frozen=True)
class Wanted:
    """What a kernel is to be.

    Attributes:
        name: of the kernel; ``python3`` makes the course's notebooks open with it at once.
        site: a name of ``slurm/sites``; "": none.
        modules: loaded on top of the site's.
        container: words before python (``apptainer exec --nv course.sif``), or an image alone where the site knows how.
        python: the interpreter; "": this one, or ``python`` in a container.
    """

    name: str = NAME
    site: str = ""
    modules: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    python: str = ""


def install(wanted: Wanted, prefix: Path | None = None) -> Path:
    """Write the kernel, in place of an older one of the course; returns its folder.

    Args:
        wanted: what it is to be.
        prefix: into ``PREFIX/share/jupyter/kernels``; None: into the user's own folder.

    Raises:
        CourseError: something that cannot be, a setting that the site demands and nobody set, a kernel of that name
            that is not the course's, or a folder that cannot be written.
    """
    helper = script(wanted)
    manager = _manager()
    _check_free(manager.user_kernel_dir if prefix is None else Path(prefix) / "share" / "jupyter" / "kernels", wanted)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / wanted.name
        folder.mkdir(mode=0o755)
        (folder / "kernel.json").write_text(json.dumps(spec(wanted), indent=1) + "\n")
        (folder / _HELPER).write_text(helper)
        (folder / _HELPER).chmod(0o755)
        try:
            own = {"user": True} if prefix is None else {"prefix": str(prefix)}
            return Path(manager.install_kernel_spec(str(folder), wanted.name, **own))
        except OSError as error:
            raise CourseError(
                f"cannot write the kernel to {error.filename}: {error.strerror}; choose --user, or a --prefix that "
                "you may write to"
            ) from None


def spec(wanted: Wanted) -> dict:
    """What stands in ``kernel.json``."""
    return {
        "argv": [f"{{resource_dir}}/{_HELPER}", "-f", "{connection_file}"],
        "display_name": NAME + (f" ({wanted.site})" if wanted.site else ""),
        "language": "python",
        "metadata": {"debugger": True, NAME: {"version": __version__, "site": wanted.site}},
    }


def script(wanted: Wanted, env: Mapping[str, str] | None = None) -> str:
    """The helper script.

    Raises:
        CourseError: a name, site, module or container that cannot be, or a setting that the site demands is not set.
    """
    env = os.environ if env is None else env
    if not _VALID.fullmatch(wanted.name):
        raise CourseError(f"--name {wanted.name!r}: small letters, digits, '.', '_' and '-' only; choose another")
    if wrong := [module for module in wanted.modules if not _MODULE.fullmatch(module)]:
        raise CourseError(f"--modules {wrong[0]!r} is no module's name; give names with spaces between them")
    setting = _site_lines(wanted, env) if wanted.site else []
    if wanted.modules:
        setting.append(f"module load {' '.join(wanted.modules)}")
    setting = [*_MODULE_COMMAND, "set -eo pipefail", *setting] if setting else ["set -eo pipefail"]
    if wanted.container and not _is_image(wanted):
        setting.append(
            f"export DLTUTORIAL_CONTAINER={shlex.quote(' '.join(wanted.container))} DLTUTORIAL_PYTHON=python"
        )
    if wanted.python:
        setting.append(f"export DLTUTORIAL_PYTHON={shlex.quote(wanted.python)}")
    if wanted.container or wanted.python:  # which need not have the course installed
        course = shlex.quote(str(Path(__file__).resolve().parents[2]))
        setting.append(f'export PYTHONPATH={course}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines = [
        "#!/bin/bash",
        f"# Starts the kernel {wanted.name}. Made by `dltutorial kernel install`: install it again, do not edit it.",
        *setting,
        "# Threads that wait give their core away.",
        'export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"',
        'read -r -a words <<<"${DLTUTORIAL_CONTAINER:-}"',
        f"python={shlex.quote(sys.executable)}",
        'exec "${words[@]}" "${DLTUTORIAL_PYTHON:-$python}" -m ipykernel_launcher "$@"',
    ]
    return "\n".join(lines) + "\n"


# Environment modules and Lmod define it in the profile: https://lmod.readthedocs.io/en/latest/030_installing.html
_MODULE_COMMAND = (
    "# The command `module` is a function of login shells, which a hub does not start.",
    "if ! type module >/dev/null 2>&1 && [ -r /etc/profile ]; then",
    "    before=$PATH",
    "    source /etc/profile >&2",
    '    PATH="$PATH:$before"',
    "fi",
)


def _site_lines(wanted: Wanted, env: Mapping[str, str]) -> list[str]:
    """A site's settings, after those that its file demands: they are taken as they are now, unless set then."""
    known = sites.names()
    if wanted.site not in known:
        raise CourseError(f"no site {wanted.site!r}; there is: {', '.join(known)}")
    file = paths.course_folder("slurm") / "slurm" / "sites" / f"{wanted.site}.sh"
    lines = []
    for name, what in _DEMANDED.findall(file.read_text(encoding="utf-8")):
        if not env.get(name):
            raise CourseError(f"site {wanted.site} needs {name}: {what}; then install again")
        lines.append(f'[ -n "${{{name}:-}}" ] || export {name}={shlex.quote(env[name])}')
    if wanted.container and _is_image(wanted):
        lines.append(f"export DLTUTORIAL_IMAGE={shlex.quote(wanted.container[0])}")
    if wanted.site != "pocket":  # whose login node is somebody's own machine
        lines.append('export DLTUTORIAL_NODE="${DLTUTORIAL_NODE:-login}"')
    return [*lines, f"source {shlex.quote(str(file))} >&2"]


def _is_image(wanted: Wanted) -> bool:
    """Whether the container is an image alone, which the site knows how to start.

    Raises:
        CourseError: an image alone, and nobody who knows.
    """
    if len(wanted.container) != 1:
        return False
    known = [s for s in sites.names() if "DLTUTORIAL_IMAGE" in _text(s)]
    if wanted.site not in known:
        raise CourseError(
            f"--container {wanted.container[0]!r} is an image alone; give the whole command, such as "
            f"--container 'apptainer exec --nv {wanted.container[0]}', or a site that knows one: {', '.join(known)}"
        )
    return True


def _text(site: str) -> str:
    """A site's file without its comments."""
    text = (paths.course_folder("slurm") / "slurm" / "sites" / f"{site}.sh").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def installed() -> list[tuple[str, str, str]]:
    """(name, site, folder) of each kernel of the course that Jupyter finds."""
    found = _manager().get_all_specs()
    return [
        (name, kernel["spec"]["metadata"][NAME].get("site", ""), kernel["resource_dir"])
        for name, kernel in sorted(found.items())
        if NAME in kernel["spec"].get("metadata", {})
    ]


def remove(name: str) -> Path:
    """Remove a kernel of the course; returns the folder that it had.

    Raises:
        CourseError: there is none of that name, or it cannot be removed.
    """
    names = [found for found, _, _ in installed()]
    if name not in names:
        raise CourseError(f"no kernel {name!r} of the course; there is: {', '.join(names) or 'none'}")
    try:
        return Path(_manager().remove_kernel_spec(name))
    except OSError as error:
        raise CourseError(f"cannot remove {error.filename}: {error.strerror}; who installed it can") from None


def is_found(folder: Path) -> bool:
    """Whether Jupyter, as it is set up here, looks where a kernel was put."""
    return str(folder.parent) in _manager().kernel_dirs


def _check_free(kernels: Path | str, wanted: Wanted) -> None:
    """A kernel that somebody else has made is not replaced."""
    file = Path(kernels) / wanted.name / "kernel.json"
    try:
        is_ours = NAME in json.loads(file.read_text()).get("metadata", {})
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, AttributeError):
        is_ours = False
    if not is_ours:
        raise CourseError(f"{file.parent} holds a kernel that is not the course's; choose another --name, or remove it")


def _manager() -> Any:
    """Loaded late: the command line's help does without."""
    from jupyter_client.kernelspec import KernelSpecManager

    return KernelSpecManager()


def words(text: str | None) -> Sequence[str]:
    """A line as a shell would split it.

    Raises:
        CourseError: a quotation mark without its fellow.
    """
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise CourseError(f"cannot read {text!r}: {error}; close what you open") from None
