"""What a kernel finds around it: asked inside the kernel by ``dltutorial kernel check``.

In: the kernel's own process. Out: rows (what, here, what is wrong and what to do; "" if nothing is). Loads torch, since
whether it loads is one of the questions.
"""

import json
import os
import platform
import shutil
from collections.abc import Iterator

from dltutorial import config, machine, node
from dltutorial.course import doctor
from dltutorial.errors import CourseError

MARK = "dltutorial-kernel-probe "  # begins the line that the checker looks for
Row = tuple[str, str, str]


def tell() -> None:
    """Print the rows as one line, for whoever started this kernel."""
    print(MARK + json.dumps(list(rows())))


def rows() -> Iterator[Row]:
    """All that can be asked without starting anything."""
    yield "python", platform.python_version(), ""
    yield _torch()
    yield _device()
    yield _preset()
    for name, (folder, variable) in doctor.FOLDERS.items():
        problem = doctor.write_problem(folder().absolute())
        yield name, str(folder()), f"{problem}; set {variable} to a folder that you may write to" if problem else ""
    yield _node()
    yield _slurm()


def _torch() -> Row:
    try:
        import torch
    except (ImportError, OSError) as error:
        return "torch", machine.UNKNOWN, f"does not load ({error}); install it into this kernel's Python or image"
    return "torch", torch.__version__, ""


def _device() -> Row:
    gpus = machine.accelerators()
    names = ", ".join(gpu.name for gpu in gpus)
    in_job = os.environ.get("SLURM_GPUS_ON_NODE") or os.environ.get("SLURM_JOB_GPUS")
    problem = "this job has GPUs, but torch sees none: a build for CPUs, or a container without --nv" if in_job else ""
    return "device", f"cuda: {names}" if gpus else "cpu", "" if gpus else problem


def _preset() -> Row:
    try:
        return "preset", config.preset().name, ""
    except CourseError as error:
        return "preset", machine.UNKNOWN, str(error)


def _node() -> Row:
    try:
        return "runs on", node.here().told, ""
    except CourseError as error:
        return "runs on", machine.UNKNOWN, str(error)


def _slurm() -> Row:
    try:
        here = node.here()
    except CourseError:  # said in the row above
        here = node.Node("own")
    if here.kind == "job":
        return "Slurm", "a job", ""
    if shutil.which("sbatch"):
        return "Slurm", "commands", ""
    needed = "sbatch is not on this kernel's PATH, so nothing can be sent; work on a compute node instead"
    return "Slurm", machine.UNKNOWN, needed if here.is_login else ""
