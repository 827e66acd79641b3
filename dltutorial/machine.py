"""What this process runs on: device, cores, memory, disk, units for low precision, Slurm, place among ranks.

In: ``/proc``, ``/dev``, the environment, and torch where an accelerator may be. Out: a frozen ``Machine``, and a
few short answers that are cheap enough to ask for at any time. Importing this loads no torch. What cannot be found
out is None, shown as "not available". What the machine *achieves* is measured in ``peaks``.
"""

import functools
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import dltutorial
from dltutorial import paths
from dltutorial.limits import affinity_cores, cores, memory_bytes
from dltutorial.ranks import RankInfo

__all__ = ["Accelerator", "Machine", "RankInfo", "cores", "describe", "device", "label", "memory_bytes"]
__all__ += ["rank_cores", "suggest_preset", "use_cores", "versions"]

UNKNOWN = "not available"  # how a None is shown

# Device files of NVIDIA drivers (also under WSL and on Jetson) and of AMD's; without one, asking torch is a waste.
_DEVICE_FILES = ("nvidia[0-9]*", "nvidiactl", "dxg", "nvhost-gpu", "kfd")

# /proc/cpuinfo flags that decide how fast a precision is: x86 first, then Arm.
_CPU_UNITS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm"),
)


@dataclass(frozen=True)
class Accelerator:
    """One GPU. ``kind`` is CUDA or ROCm; ``tensor_core_dtypes`` is None where it cannot be told."""

    name: str
    kind: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None
    tensor_core_dtypes: tuple[str, ...] | None


@dataclass(frozen=True)
class Machine:
    """What is here for this process. None means "not available".

    Attributes:
        system: operating system, release and architecture.
        device: where the course computes: cuda (also for ROCm) or cpu.
        accelerators: the GPUs torch can use.
        cpu_model: the processor's name.
        cores: cores this process may use.
        cpu_units: instruction sets that matter for precision.
        memory_bytes, memory_available_bytes: of what this process may use.
        disk_free_bytes: free in the folder for data.
        slurm: "a job", "commands" (of Slurm are here), or None.
        rank: this process among its ranks.
    """

    system: str
    device: str
    accelerators: tuple[Accelerator, ...]
    cpu_model: str | None
    cores: int
    cpu_units: tuple[str, ...] | None
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int | None
    slurm: str | None
    rank: RankInfo


def describe(folder: Path | None = None) -> Machine:
    """Look at everything. Loads torch where it is installed; ``folder`` (default: the data) tells which disk.
    CourseError: the variables of a launcher contradict each other.
    """
    total, available = memory_bytes()
    commands = "commands" if shutil.which("sinfo") and shutil.which("sbatch") else None
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}", device=device(),
        accelerators=accelerators(), cpu_model=cpu_model(), cores=cores(), cpu_units=cpu_units(), memory_bytes=total,
        memory_available_bytes=available, disk_free_bytes=disk_free_bytes(folder or paths.data_dir()),
        slurm="a job" if "SLURM_JOB_ID" in os.environ else commands, rank=RankInfo.from_env(),
    )  # fmt: skip


@functools.cache
def label() -> str:
    """A short name for tables and records, without the host's name, such as "AMD EPYC, 2 cores"."""
    gpus = accelerators()
    if gpus:
        return gpus[0].name if len(gpus) == 1 else f"{len(gpus)} × {gpus[0].name}"
    n = cores()
    return f"{cpu_model() or platform.machine() + ' CPU'}, {n} {'core' if n == 1 else 'cores'}"


def versions() -> dict[str, str | None]:
    """Versions of python, torch, numpy and dltutorial; None for what is not installed. Loads none of them."""
    found = {name: package_version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version(), **found, "dltutorial": dltutorial.__version__}


@functools.cache
def package_version(package: str) -> str | None:
    """The version of an installed package, without importing it; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def suggest_preset() -> str:
    """The preset that fits: cluster and gpu need accelerators; smoke suits CI and fewer than 4 cores, else laptop.
    CourseError: the variables of a launcher contradict each other.
    """
    if n := n_devices():
        return "cluster" if n > 1 or RankInfo.from_env().world_size > 1 else "gpu"
    return "smoke" if os.environ.get("CI") or cores() < 4 else "laptop"


def device() -> str:
    """Where the course computes: "cuda" where torch can use a GPU (ROCm goes by that name too), else "cpu"."""
    return "cuda" if n_devices() else "cpu"


def accelerators() -> tuple[Accelerator, ...]:
    """The GPUs that torch can use here; loads torch only if a driver's device file is there."""
    if not n_devices():
        return ()
    import torch

    kind = "ROCm" if torch.version.hip else "CUDA"
    found = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        capability = (gpu.major, gpu.minor) if kind == "CUDA" else None
        units = tensor_core_dtypes(capability, gpu.name) if capability else None
        found.append(Accelerator(gpu.name, kind, gpu.total_memory, capability, units))
    return tuple(found)


def tensor_core_dtypes(capability: tuple[int, int], name: str = "") -> tuple[str, ...]:
    """Floating-point types with matrix units in an NVIDIA GPU of this compute capability.

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
    """The processor's name without trademarks, clock and core count."""
    name = _cpuinfo(cpuinfo, "model name")
    if name is None and sys.platform == "darwin":
        import subprocess

        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    name = re.sub(r"\((R|TM|tm)\)|@.*|\b\d+-Core\b|\b(CPU|Processor)\b", " ", name or "")
    return " ".join(name.split()) or None


def cpu_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...] | None:
    """Instruction sets of this CPU that decide how fast a precision is, such as avx512_bf16."""
    flags = _cpuinfo(cpuinfo, "flags") or _cpuinfo(cpuinfo, "Features")
    return None if flags is None else tuple(unit for unit in _CPU_UNITS if unit in flags.split())


def disk_free_bytes(folder: Path) -> int | None:
    """Bytes free for ``folder``, or for the nearest parent that exists."""
    folder = Path(folder).absolute()
    try:
        return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    except OSError:
        return None


def rank_cores() -> int:
    """Cores for this process when all ranks of its node compute at once, at least 1.

    A process without a launcher takes no more than ``OMP_NUM_THREADS``, as torch does; torchrun sets that to 1 for
    want of better knowledge, so there it does not count.
    CourseError: the variables of a launcher contradict each other.
    """
    here, env = RankInfo.from_env(), os.environ
    on_node = int(env.get("SLURM_CPUS_ON_NODE") or 0)
    # srun hands each task its own cores, if told how many or if it binds tasks; torchrun's processes share theirs.
    if here.launcher == "single" and env.get("OMP_NUM_THREADS", "").isdecimal():
        return max(1, min(cores(), int(env["OMP_NUM_THREADS"][:9])))
    own = here.launcher == "slurm" and (env.get("SLURM_CPUS_PER_TASK") or affinity_cores() < on_node)
    return cores() if own else max(1, cores() // here.local_world_size)


def use_cores(n: int | None = None) -> int:
    """Let torch compute with ``n`` threads (default: this rank's share of the cores); returns ``n``."""
    import torch

    n = rank_cores() if n is None else n
    torch.set_num_threads(n)
    return n


def n_devices() -> int:
    """How many GPUs torch can use here."""
    driver = sys.platform == "win32" or any(any(Path("/dev").glob(name)) for name in _DEVICE_FILES)
    if not driver or os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return 0
    try:
        import torch
    except (ImportError, OSError):  # not installed, or its libraries do not load
        return 0
    return torch.cuda.device_count()


def _cpuinfo(path: Path, field: str) -> str | None:
    """The value of the first line of ``field`` in /proc/cpuinfo."""
    try:
        with open(path, encoding="utf-8") as lines:
            found = (line.partition(":") for line in lines)
            return next((value.strip() for name, _, value in found if name.strip() == field), None)
    except OSError:
        return None
