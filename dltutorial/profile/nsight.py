"""NVIDIA's profilers on the same run: ``nsys`` for the timeline of a whole program, ``ncu`` for single kernels.

In: the command that makes the run. Out: the command that profiles it, as a list of words. Both tools record only
between ``cudaProfilerStart`` and ``cudaProfilerStop``, which :func:`capture` calls around the steps after the warm-up,
so that the report holds steady steps and stays small.

Source: docs.nvidia.com, Nsight Systems User Guide ("CLI Profile Command Switch Options") and Nsight Compute CLI.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dltutorial.errors import CourseError
from dltutorial.profile import ranges
from dltutorial.profile.events import STEP
from dltutorial.profile.ranges import annotate


def available(tool: str) -> str | None:
    """Where ``nsys`` or ``ncu`` is; None if it is not on this machine."""
    return shutil.which(tool)


def nsys_command(run: Sequence[str], report: str = "profile") -> list[str]:
    """Record CUDA calls, kernels, copies and NVTX ranges of a run into ``<report>.nsys-rep``.

    Args:
        run: the command, word by word; it must call :func:`capture`.
        report: name of the file.
    """
    switches = {
        "trace": "cuda,nvtx,osrt",
        "sample": "none",  # no sampling of the processor: ranges say where the host is
        "cpuctxsw": "none",
        "cuda-graph-trace": "node",  # kernels inside CUDA Graphs one by one
        "capture-range": "cudaProfilerApi",
        "capture-range-end": "stop",
        "force-overwrite": "true",
        "output": report,
    }
    return ["nsys", "profile", *(f"--{name}={value}" for name, value in switches.items()), *run]


def export_command(report: str = "profile") -> list[str]:
    """Turn ``<report>.nsys-rep`` into ``<report>.sqlite``, which ``nsight_report.read`` reads."""
    switches = ("--type=sqlite", "--force-overwrite=true", f"--output={report}.sqlite")
    return ["nsys", "export", *switches, f"{report}.nsys-rep"]


def ncu_command(run: Sequence[str], report: str = "kernels", kernels: int = 50) -> list[str]:
    """Measure single kernels against their roofline into ``<report>.ncu-rep``.

    Every kernel is run several times with its inputs restored, so this takes minutes: ask for few.

    Args:
        run: the command, word by word; it must call :func:`capture`.
        report: name of the file.
        kernels: how many, from the start of the captured steps.
    """
    switches = ("--profile-from-start", "off", "--nvtx", "--set", "roofline", "--target-processes", "all")
    return ["ncu", *switches, "--launch-count", str(kernels), "--force-overwrite", "--export", report, *run]


def python_command(*words: str) -> list[str]:
    """A run of this course's Python as a command, relative to the course's folder where it can be."""
    return [str(Path(".venv") / "bin" / "python"), *words]


def capture(run_step: Callable[[], object], steps: int = 5, warmup: int = 5) -> None:
    """Run ``warmup + steps`` steps, the last ones inside the profilers' window, with ranges switched on.

    Without a CUDA device the steps run all the same, and nothing records them.

    Raises:
        CourseError: a number of steps that cannot be.
    """
    if steps < 1 or warmup < 0:
        raise CourseError(f"cannot capture {steps} steps after {warmup} of warm-up; give at least 1 step")
    on_cuda = torch.cuda.is_available()
    for _ in range(warmup):
        run_step()
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
    try:
        with ranges.enabled():
            for _ in range(steps):
                with annotate(STEP):
                    run_step()
    finally:
        if on_cuda:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
