"""Describe what this process runs on: device, cores, memory, disk, units for low precision, Slurm, and its rank.

The input is ``/proc``, ``/dev``, the environment, and torch if there may be a GPU. The output is a frozen ``Machine``,
or one of its figures alone. Memory and disk are in bytes. What cannot be found out is None, which is shown as "not
available". ``profile.peaks`` measures how fast the machine is. Importing this module does not load torch.
Source of ``/proc/cpuinfo``: https://man7.org/linux/man-pages/man5/proc_cpuinfo.5.html.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import dltutorial
from dltutorial import paths
from dltutorial.ranks import RankInfo

UNKNOWN = "not available"  # how None is shown

# The device files of NVIDIA's drivers (also in WSL and on Jetson) and of AMD's. Without one, torch finds no GPU.
_DEVICE_FILES = ("nvidia[0-9]*", "nvidiactl", "dxg", "nvhost-gpu", "kfd")

# The flags in /proc/cpuinfo that decide how fast a precision is.
_X86_UNITS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "amx_fp16")
_ARM_UNITS = ("asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm")


@dataclass(frozen=True)
class Accelerator:
    """One GPU.

    Attributes:
        name: The name that torch reports.
        kind: CUDA or ROCm.
        memory_bytes: The memory of the GPU.
        compute_capability: CUDA's version of the hardware, or None for ROCm.
        tensor_core_dtypes: The formats in which its matrix units compute, or None for ROCm.
    """

    name: str
    kind: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None
    tensor_core_dtypes: tuple[str, ...] | None


@dataclass(frozen=True)
class Machine:
    """What this process can use. None means "not available".

    Attributes:
        system: The operating system, its release and the architecture.
        device: "cuda" (also for ROCm) or "cpu".
        accelerators: The GPUs that torch can use.
        cpu_model: The name of the CPU.
        cores: The number of cores that this process may use.
        cpu_units: The instruction sets that matter for precision.
        memory_bytes: The memory of the machine.
        memory_available_bytes: The memory that is free now.
        disk_free_bytes: The free space in the folder for data.
        slurm: "a job" inside a job, "commands" if Slurm is installed, or None.
        rank: The rank of this process.
    """

    system: str
    device: str
    accelerators: tuple[Accelerator, ...]
    cpu_model: str | None
    cores: int
    cpu_units: tuple[str, ...] | None
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int
    slurm: str | None
    rank: RankInfo


def describe() -> Machine:
    """Describe this machine. This loads torch if it is installed and there may be a GPU.

    Raises:
        CourseError: The variables of a launcher contradict each other.
    """
    total_bytes, available_bytes = memory_bytes()
    slurm = None
    if "SLURM_JOB_ID" in os.environ:
        slurm = "a job"
    elif shutil.which("sinfo") and shutil.which("sbatch"):
        slurm = "commands"
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        device=device(),
        accelerators=accelerators(),
        cpu_model=cpu_model(),
        cores=cores(),
        cpu_units=cpu_units(),
        memory_bytes=total_bytes,
        memory_available_bytes=available_bytes,
        disk_free_bytes=disk_free_bytes(paths.data_dir()),
        slurm=slurm,
        rank=RankInfo.from_env(),
    )


def cores() -> int:
    """Return how many cores this process may use, at least 1.

    This is the count of joblib, which respects affinity masks and quotas, or Slurm's share if that is smaller.
    """
    import joblib

    counts = [joblib.cpu_count()]
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if name in os.environ:
            counts.append(int(os.environ[name]))
    return min(counts)


def memory_bytes() -> tuple[int, int]:
    """Return the memory of this machine in bytes: all of it, and what is free now."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available


@functools.cache
def label() -> str:
    """Return a short name for tables and records without the host's name, such as "AMD EPYC, 2 cores"."""
    gpus = accelerators()
    if gpus:
        return gpus[0].name if len(gpus) == 1 else f"{len(gpus)} × {gpus[0].name}"
    name = cpu_model() or f"{platform.machine()} CPU"
    n_cores = cores()
    return f"{name}, 1 core" if n_cores == 1 else f"{name}, {n_cores} cores"


def versions() -> dict[str, str | None]:
    """Return the versions of python, torch, numpy and dltutorial, or None for a package that is not installed."""
    return {
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "numpy": package_version("numpy"),
        "dltutorial": dltutorial.__version__,
    }


@functools.cache
def package_version(package: str) -> str | None:
    """Return the version of a package without importing it, or None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def suggest_preset() -> str:
    """Return the name of the preset that fits this machine.

    "cluster" and "gpu" need GPUs. "smoke" is for CI and for fewer than 4 cores.

    Raises:
        CourseError: The variables of a launcher contradict each other.
    """
    n_gpus = n_devices()
    if n_gpus:
        many = n_gpus > 1 or RankInfo.from_env().world_size > 1
        return "cluster" if many else "gpu"
    small = os.environ.get("CI") or cores() < 4
    return "smoke" if small else "laptop"


def device() -> str:
    """Return the device on which the course computes: "cuda" if torch can use a GPU (also ROCm's), else "cpu"."""
    return "cuda" if n_devices() else "cpu"


def accelerators() -> tuple[Accelerator, ...]:
    """Return the GPUs that torch can use. This loads torch only if the device file of a driver exists."""
    if not n_devices():
        return ()
    import torch

    kind = "ROCm" if torch.version.hip else "CUDA"
    gpus = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        capability = (gpu.major, gpu.minor) if kind == "CUDA" else None
        units = tensor_core_dtypes(capability, gpu.name) if capability else None
        gpus.append(Accelerator(gpu.name, kind, gpu.total_memory, capability, units))
    return tuple(gpus)


def tensor_core_dtypes(capability: tuple[int, int], name: str = "") -> tuple[str, ...]:
    """Return the floating-point formats of the matrix units (tensor cores) in an NVIDIA GPU.

    Args:
        capability: The compute capability, major and minor.
        name: The name of the GPU.

    Source: CUDA C++ Programming Guide, "Compute Capabilities", table of arithmetic and tensor core types (2025).
    """
    if capability < (7, 0) or "GTX 16" in name:  # Turing's GTX 16 series was made without tensor cores
        return ()
    dtypes = ["fp16"]
    if capability >= (8, 0):
        dtypes += ["bf16", "tf32"]
    if capability in ((8, 0), (9, 0), (10, 0), (10, 3)):
        dtypes += ["fp64"]
    if capability >= (8, 9):
        dtypes += ["fp8"]
    if capability >= (10, 0):
        dtypes += ["fp4"]
    return tuple(dtypes)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the name of the CPU without trademarks, clock and number of cores, or None if it is unknown."""
    name = _cpuinfo(cpuinfo, "model name")
    if name is None and sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    name = re.sub(r"\((R|TM|tm)\)|@.*|\b\d+-Core\b|\b(CPU|Processor)\b", " ", name or "")
    return " ".join(name.split()) or None


def cpu_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...] | None:
    """Return the instruction sets of this CPU that decide how fast a precision is, such as avx512_bf16."""
    flags = _cpuinfo(cpuinfo, "flags") or _cpuinfo(cpuinfo, "Features")  # x86 and Arm
    if flags is None:
        return None
    return tuple(unit for unit in _X86_UNITS + _ARM_UNITS if unit in flags.split())


def disk_free_bytes(folder: Path) -> int:
    """Return the bytes that are free in ``folder``, or in its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def rank_cores() -> int:
    """Return how many cores this process has when all ranks of its node compute at the same time, at least 1.

    srun gives each task cores of its own if it knows their number. The processes of torchrun share the cores of the
    node. A process without a launcher takes no more than ``OMP_NUM_THREADS``, as torch does. torchrun sets this
    variable to 1 in any case, so there it does not count.

    Raises:
        CourseError: The variables of a launcher contradict each other.
    """
    here = RankInfo.from_env()
    n_threads = os.environ.get("OMP_NUM_THREADS", "")
    if here.launcher == "single" and n_threads.isdecimal():
        return max(1, min(cores(), int(n_threads)))
    if here.launcher == "slurm" and "SLURM_CPUS_PER_TASK" in os.environ:
        return cores()
    return max(1, cores() // here.local_world_size)


def use_cores(n: int | None = None) -> int:
    """Let torch compute with ``n`` threads. None means this rank's share of the cores.

    Returns:
        The number of threads.
    """
    import torch

    n_threads = rank_cores() if n is None else n
    torch.set_num_threads(n_threads)
    return n_threads


def n_devices() -> int:
    """Return how many GPUs torch can use."""
    device_files = [file for pattern in _DEVICE_FILES for file in Path("/dev").glob(pattern)]
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if is_hidden or not device_files:
        return 0
    try:
        import torch
    except (ImportError, OSError):  # torch is not installed, or its libraries do not load
        return 0
    return torch.cuda.device_count()


def _cpuinfo(path: Path, field: str) -> str | None:
    """Return the value of the first line of ``field`` in /proc/cpuinfo, or None."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return None
