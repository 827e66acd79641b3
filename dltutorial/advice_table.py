"""The table behind ``dltutorial.advice``: words of torch, Python, CUDA, NCCL, gloo and git, and what to do about each.

The words are those that torch 2.6 to 2.13, CUDA 12, NCCL 2 and gloo use; most are met for real in the tests.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """What to do about one kind of error.

    Attributes:
        name: short, for tests and links.
        group: the heading it stands under in TROUBLESHOOTING.md.
        pattern: is searched in ``Kind: message``; the first advice of the table that fits is given.
        seen: how the error looks, in short.
        do: one sentence: what it means and what to do.
        outside: the cause is not in anybody's code, so a command says just this, without a traceback.
    """

    name: str
    group: str
    pattern: str
    seen: str
    do: str
    outside: bool = False


_MEMORY, _RANKS, _CUDA = "Memory and disk", "Ranks and collectives", "CUDA"
_DATA, _TENSORS, _SETUP, _NOTEBOOK = "Data and workers", "Shapes, types, gradients", "Installation", "Notebooks and git"

TABLE: tuple[Advice, ...] = (
    Advice(
        "gpu-memory", _MEMORY, r"OutOfMemoryError|(CUDA|HIP|NCCL|CUBLAS|cuDNN)\b.{0,40}out of memory|_ALLOC_FAILED",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate …",
        "The GPU's memory is full: halve the batch size, shut down other notebooks' kernels (nvidia-smi shows who "
        "holds memory), then restart this kernel.",
        outside=True,
    ),
    Advice(
        "shared-memory", _MEMORY, r"[Bb]us error|unable to (open|allocate|mmap|resize).{0,40}shared memory|/dev/shm",
        "DataLoader worker is killed by signal: Bus error; unable to open shared memory object",
        "Batches pass from the workers through /dev/shm, and that is full: use fewer workers or smaller batches, or "
        "start the container with more of it (--shm-size=8g).",
        outside=True,
    ),
    Advice(
        "disk-full", _MEMORY, r"No space left on device|Disk quota exceeded|Errno (28|122)\b",
        "OSError: [Errno 28] No space left on device",
        "The disk or your quota is full: remove old folders of runs/, or let DLTUTORIAL_RUNS and DLTUTORIAL_DATA name "
        "folders on a disk that has room.",
        outside=True,
    ),
    Advice(
        "memory", _MEMORY, r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|Errno 12\b",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory; MemoryError",
        "This machine has less memory than was asked for: use a smaller batch or preset (smoke), and look for a size "
        "that is wrong by a factor of a thousand.",
        outside=True,
    ),
    Advice(
        "worker-killed", _DATA, r"DataLoader worker .{0,60}(is killed by signal|exited unexpectedly)",
        "RuntimeError: DataLoader worker (pid …) is killed by signal: Killed",
        "A process that loads data was killed, mostly for want of memory: lower num_workers or the batch size; "
        "num_workers=0 shows an error of its own code.",
        outside=True,
    ),
    Advice(
        "rank-killed", _RANKS, r"\bkilled by SIGKILL|^SIGKILL",
        "RankFailed: rank 1 of 2 failed: killed by SIGKILL",
        "The system or somebody ended this rank, mostly for want of memory: use fewer ranks or smaller batches, and "
        "free -h shows what is left.",
        outside=True,
    ),
    Advice(
        "rank-aborted", _RANKS, r"\bkilled by SIG(ABRT|SEGV|BUS)|^SIG(ABRT|SEGV|BUS)|EnforceNotMet",
        "RankFailed: rank 0 of 2 failed: killed by SIGABRT; terminate called … gloo::EnforceNotMet",
        "The library below torch gave up, as gloo does when ranks bring tensors of different sizes to one collective: "
        "print x.shape and x.dtype on every rank just before the call.",
    ),
    Advice(
        "ranks-differ", _RANKS, r"appears not to match sizes of the same param|DDP expects same model across all ranks|"
        r"Detected mismatch between collectives",
        "RuntimeError: params[0] in this process with sizes [5, 3] appears not to match sizes of the same param …",
        "The ranks do not hold the same model or do not make the same call: build the model from the same numbers on "
        "every rank, and call the same collectives in the same order.",
    ),
    Advice(
        "unused-parameters", _RANKS, r"Expected to have finished reduction in the prior iteration",
        "RuntimeError: Expected to have finished reduction in the prior iteration",
        "A parameter took no part in the loss, so DDP waits for its gradient: use every parameter in forward, or pass "
        "find_unused_parameters=True.",
    ),
    Advice(
        "collective-timeout", _RANKS, r"Watchdog caught collective operation timeout|NCCL.{0,80}(timed out|"
        r"timeout)|Timed out waiting \d+ms for (recv|send) operation|wait timeout after \d+ms|Socket Timeout",
        "Watchdog caught collective operation timeout; Timed out waiting 30000ms for recv operation",
        "A rank waited for others that never came: look for one that failed or took another branch, let every rank "
        "call the same collectives in the same order, and raise timeout only if a rank is truly that slow.",
        outside=True,
    ),
    Advice(
        "peer-gone", _RANKS, r"Connection (was )?(closed|reset) by peer|ncclRemoteError|remote process (has )?(exited|"
        r"terminated)|Connection closed by peer",
        "RuntimeError: Connection closed by peer; ncclRemoteError",
        "Another rank ended first, and this is only the effect: read the first error in the output of the other ranks.",
        outside=True,
    ),
    Advice(
        "nccl", _RANKS, r"DistBackendError|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|"
        r"NCCL error",
        "DistBackendError: NCCL error in: …, unhandled system error",
        "NCCL cannot set up or use the link between the GPUs: run again with NCCL_DEBUG=WARN for the reason, give each "
        "rank a GPU of its own, and name the network with NCCL_SOCKET_IFNAME (slurm/sites has it).",
        outside=True,
    ),
    Advice(
        "port-in-use", _RANKS, r"EADDRINUSE|[Aa]ddress already in use|Errno 98\b|port \d+,? (it )?(is|was) already in "
        r"use",
        "DistNetworkError: … EADDRINUSE, address already in use",
        "Another program listens on this port, maybe an earlier run that has not ended: end it, or choose another port "
        "(MASTER_PORT for ranks, --port for servers; 0 takes a free one).",
        outside=True,
    ),
    Advice(
        "no-group", _RANKS, r"Default process group has not been initialized",
        "ValueError: Default process group has not been initialized",
        "A collective was called outside ranks: put the code into a function for launch(function, 2).",
    ),
    Advice(
        "no-rank-variables", _RANKS, r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected",
        "ValueError: … env:// rendezvous: environment variable RANK expected, but not set",
        "This process was not started as a rank: start it with torchrun or srun, or use launch(function, 2), which "
        "makes the group itself.",
    ),
    Advice(
        "cuda-fork", _CUDA, r"Cannot re-initialize CUDA in forked subprocess",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess",
        "A forked process cannot use the GPU that its parent already used: keep CUDA out of datasets and workers, or "
        "pass multiprocessing_context='spawn'; launch() never forks the kernel.",
    ),
    Advice(
        "driver-old", _CUDA, r"NVIDIA driver on your system is too old|driver version is insufficient|no kernel "
        r"image is available",
        "RuntimeError: The NVIDIA driver on your system is too old",
        "This torch was built for another driver or GPU: install the build that fits (nvidia-smi shows the driver's "
        "CUDA version, pytorch.org the builds), or load your site's module; CUDA_VISIBLE_DEVICES= runs on the CPU.",
        outside=True,
    ),
    Advice(
        "no-gpu", _CUDA, r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|[Nn]o CUDA GPUs are available|"
        r"no CUDA-capable device|invalid device ordinal",
        "AssertionError: Torch not compiled with CUDA enabled; No CUDA GPUs are available",
        "There is no such GPU for this process: write device = machine.device() in place of 'cuda', or ask the "
        "scheduler for a GPU; nvidia-smi shows those there are.",
        outside=True,
    ),
    Advice(
        "capture", _CUDA, r"stream is capturing|StreamCapture(Unsupported|Invalidated|Implicit)|captures? underway",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "Something in the captured step asks the GPU for an answer (.item(), print, a copy to the CPU, a new shape): "
        "move it outside the capture, then restart the kernel.",
    ),
    Advice(
        "cuda-broken", _CUDA, r"device-side assert|illegal memory access|CUDA error: (unspecified|misaligned)",
        "RuntimeError: CUDA error: device-side assert triggered",
        "A kernel on the GPU failed earlier, often by an index out of range, and CUDA is unusable until the kernel is "
        "restarted: restart, and run it on the CPU, which names the line.",
    ),
    Advice(
        "compiler", _SETUP, r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler|CppCompileError|"
        r"(g\+\+|gcc|clang\+*|cc1plus).{0,30}(not found|No such file)",
        "InductorError: InvalidCxxCompiler: No working C++ compiler found",
        "torch.compile writes C++ and finds no compiler: install g++ (apt-get install g++, module load gcc, or conda "
        "install cxx-compiler) and restart the kernel, or leave compile off.",
        outside=True,
    ),
    Advice(
        "wrong-kernel", _SETUP, r"No module named '(torch|dltutorial|numpy|h5py|matplotlib)['.]",
        "ModuleNotFoundError: No module named 'torch'",
        "This notebook runs in a Python without the course's packages: choose its kernel (Kernel → Change Kernel), or "
        "start JupyterLab with make lab; in a terminal use .venv/bin/dltutorial.",
        outside=True,
    ),
    Advice(
        "extra-missing", _SETUP, r"No module named '(jupyterlab|jupyter_server_proxy|nbgitpuller|sphinx|myst_nb|"
        r"sphinx_book_theme|playwright|pytest|jupyterhub|ruff)\b",
        "ModuleNotFoundError: No module named 'jupyterlab'",
        "This part of the course has packages of its own: pip install -e '.[lab]' for JupyterLab, '.[hub]', '.[book]' "
        "or '.[test]' for the others; the make targets do it for you.",
        outside=True,
    ),
    Advice(
        "module-missing", _SETUP, r"ModuleNotFoundError|No module named",
        "ModuleNotFoundError: No module named 'einops'",
        "This Python lacks a package: check the name's spelling, then install it with %pip install NAME and restart "
        "the kernel.",
    ),
    Advice(
        "file-broken", _DATA, r"truncated file|file signature not found|bad object header|Failed to read all data for "
        r"array|mmap length is greater than file size|PytorchStreamReader failed|failed finding central directory|"
        r"EOFError|No data left in file|Unable to (synchronously )?open (object|file)(?!.*No such file)",
        "OSError: Unable to synchronously open file (truncated file: …)",
        "The file is cut short or of another kind, as after a full disk or a copy that was stopped: remove it and make "
        "or copy it again; dltutorial data check --out DIR looks a data set through.",
    ),
    Advice(
        "weights-only", _DATA, r"Weights only load failed",
        "UnpicklingError: Weights only load failed",
        "The file holds more than tensors, or is no checkpoint: save a model's state_dict() and load that; never set "
        "weights_only=False for a file of a stranger.",
    ),
    Advice(
        "file-missing", _DATA, r"FileNotFoundError|No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory",
        "There is no such file: check the path from the notebook's own folder (%pwd shows it); the course's data are "
        "made by dltutorial data weather.",
    ),
    Advice(
        "too-many-files", _DATA, r"Too many open files|Errno 24\b|received 0 items of ancdata",
        "OSError: [Errno 24] Too many open files",
        "This process holds as many files open as it may: close them (with open(…) as file), use fewer workers, or "
        "raise the limit with ulimit -n 4096 before you start.",
        outside=True,
    ),
    Advice(
        "no-permission", _DATA, r"PermissionError|Permission denied|Read-only file system",
        "PermissionError: [Errno 13] Permission denied",
        "You may not write or read there: let DLTUTORIAL_RUNS and DLTUTORIAL_DATA name folders of your own.",
        outside=True,
    ),
    Advice(
        "pickle", _DATA, r"[Cc]an't (get|pickle) (local object|attribute)|[Cc]annot pickle|PicklingError|not picklable",
        "AttributeError: Can't pickle local object '…<lambda>'",
        "A worker that is spawned gets its objects pickled, and lambdas and classes of a notebook cannot be: put them "
        "into a .py file and import them, or use num_workers=0; launch() can send them.",
    ),
    Advice(
        "main-guard", _DATA, r"before the\s+current process has finished its bootstrapping phase",
        "RuntimeError: … before the current process has finished its bootstrapping phase",
        "Your script starts processes while it is being imported: put its last lines below "
        "if __name__ == '__main__':.",
    ),
    Advice(
        "other-device", _TENSORS, r"same device|is not on the expected device|Input type \(torch\.cuda|"
        r"weight type \(torch\.cuda|can't convert cuda:?\d* device type tensor to numpy",
        "RuntimeError: Expected all tensors to be on the same device",
        "Some tensors are on the GPU and some are not: move model and batch alike with .to(device), and use .cpu() "
        "before NumPy or a plot.",
    ),
    Advice(
        "other-dtype", _TENSORS, r"(to|must) have the same dtype|expected scalar type|Input type \(.*\) and "
        r"(bias|weight) type|should be the same|Found dtype \w+ but expected",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
        "Two tensors have different number formats: wrap the forward pass in torch.autocast, or convert one with "
        ".to(other.dtype).",
    ),
    Advice(
        "state-dict", _TENSORS, r"Error\(s\) in loading state_dict",
        "RuntimeError: Error(s) in loading state_dict for …",
        "These weights are of another model: build the model with the recipe that stands beside the checkpoint "
        "(recipe.json), then load.",
    ),
    Advice(
        "shapes", _TENSORS, r"shapes cannot be multiplied|must match the size of tensor|is invalid for input of size|"
        r"expected input\[.*channels|[Ss]izes of tensors must match|to match target batch_size|size mismatch|"
        r"could not be broadcast|matmul: Input operand|shape mismatch|doesn't match the broadcast shape",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "Two shapes do not fit: print x.shape just before this line and compare with the letters in the names "
        "(x_BCHW); a transpose or a missing batch axis is the usual cause.",
    ),
    Advice(
        "backward-twice", _TENSORS, r"backward through the graph a second time",
        "RuntimeError: Trying to backward through the graph a second time",
        "The graph is gone after one backward(): compute the loss again before each, and .detach() what one step "
        "hands to the next.",
    ),
    Advice(
        "no-gradient", _TENSORS, r"does not require grad and does not have a grad_fn",
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        "Nothing in this loss leads to a weight: look for .detach(), .item(), torch.no_grad() or a tensor made anew "
        "between weights and loss.",
    ),
    Advice(
        "in-place", _TENSORS, r"modified by an inplace operation|leaf Variable that requires grad",
        "RuntimeError: … has been modified by an inplace operation",
        "A tensor that the gradient needs was overwritten: write x = x + 1 in place of x += 1, and change weights only "
        "inside torch.no_grad().",
    ),
    Advice(
        "blank", _NOTEBOOK, r"^NotImplementedError(: )?$",
        "NotImplementedError",
        "The blank of an exercise is still empty: write your code in place of raise NotImplementedError, run that "
        "cell, then this one.",
    ),
    Advice(
        "cell-not-run", _NOTEBOOK, r"NameError: name '\w+' is not defined",
        "NameError: name 'model' is not defined",
        "The kernel does not know this name, mostly because it was restarted: Run → Run All Above Selected Cell, and "
        "check the spelling.",
    ),
    Advice(
        "git-pull", _NOTEBOOK, r"local changes to the following files would be overwritten by merge",
        "error: Your local changes to the following files would be overwritten by merge",
        "git pull stops so that your work is not lost: run make update, which keeps it and puts newer versions "
        "beside it.",
        outside=True,
    ),
)  # fmt: skip
