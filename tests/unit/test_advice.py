"""Every error that the course gives advice on is met here, for real where this machine can make it happen.

Those of ranks are met in tests/parallel/test_advice_of_ranks.py, those of a GPU in tests/gpu/test_advice_on_cuda.py.
"""

import ast
import contextlib
import ctypes
import multiprocessing
import os
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
import torch
import torch.distributed as dist
import troubleshooting
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from dltutorial import advice, cli
from dltutorial.course import doctor
from dltutorial.errors import CourseError, DataError, DivergedError
from dltutorial.launch import RankFailed, RanksHang

ROOT = Path(__file__).parents[2]
MET = {}


def met(name):
    """The function raises, as it would in a learner's cell, the error that ``name`` is about."""

    def keep(function):
        MET[f"{name}: {function.__name__}"] = (name, function)
        return function

    return keep


@met("memory")
def a_tensor_of_petabytes(folder):
    torch.empty(10**15)


@met("memory")
def an_array_of_petabytes(folder):
    np.empty(10**15)


@met("memory")
def bytes_of_petabytes(folder):
    bytearray(10**15)


@met("disk-full")
def a_full_disk(folder):
    with open("/dev/full", "wb", 0) as file:
        file.write(b"x")


class Killed(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


@met("worker-killed")
def a_killed_worker(folder):
    next(iter(DataLoader(Killed(), num_workers=1)))


class OutOfMemory(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.empty(10**15)


@met("memory")
def a_worker_without_memory(folder):
    next(iter(DataLoader(OutOfMemory(), num_workers=1)))


@met("pickle")
def a_lambda_for_a_spawned_worker(folder):
    multiprocessing.get_context("spawn").Process(target=lambda: 1).start()  # as a DataLoader starts its workers


@met("pickle")
def a_class_of_a_notebook(folder):
    class Mine:
        pass

    pickle.dumps(Mine())


@met("pickle")
def a_file_in_a_pickle(folder):
    with open(os.devnull) as file:
        pickle.dumps(file)


@met("port-in-use")
def a_store_on_a_bound_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, True)


@met("port-in-use")
def a_group_on_a_bound_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        dist.init_process_group("gloo", init_method=address, rank=0, world_size=1)


@met("port-in-use")
def a_server_on_a_bound_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        socket.create_server(taken.getsockname())


@met("port-in-use")
def tensorboard_on_a_bound_port(folder):
    from tensorboard import program

    with socket.create_server(("127.0.0.1", 0)) as taken:
        board = program.TensorBoard()
        port = str(taken.getsockname()[1])
        board.configure(argv=["", "--logdir", str(folder), "--host", "127.0.0.1", "--port", port])
        board.launch()


@met("no-group")
def a_collective_without_ranks(folder):
    dist.all_reduce(torch.ones(1))


@met("no-rank-variables")
def a_group_without_a_launcher(folder):
    dist.init_process_group("gloo")


@met("cuda-fork")
def cuda_in_a_fork(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: False)
        patch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
        torch.cuda._lazy_init()


@met("no-gpu")
def a_tensor_on_a_gpu_that_is_not_there(folder):
    if torch.cuda.is_available():
        torch.ones(1, device=f"cuda:{torch.cuda.device_count() + 7}")
    torch.ones(1, device="cuda")


@met("compiler")
def compiling_without_a_compiler(folder):
    import torch._inductor.cpp_builder  # loaded by torch.compile

    with torch._inductor.config.patch({"cpp.cxx": (str(folder / "no-compiler"),)}):
        torch._inductor.cpp_builder.get_cpp_compiler()


@met("wrong-kernel")
def a_python_without_the_course(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dltutorial.nothing", None)
        patch.setattr(sys, "path", [])
        for name in [name for name in sys.modules if name.split(".")[0] == "h5py"]:
            patch.delitem(sys.modules, name)
        __import__("h5py")


@met("extra-missing")
def an_extra_that_is_not_installed(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [])
        patch.delitem(sys.modules, "jupyterlab", raising=False)
        __import__("jupyterlab")


@met("module-missing")
def a_module_that_nobody_has(folder):
    __import__("no_such_module_at_all")


@met("file-truncated")
def a_truncated_hdf5_file(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.zeros(10_000)
    os.truncate(folder / "x.h5", 5_000)
    h5py.File(folder / "x.h5")


@met("no-hdf5")
def a_file_that_is_no_hdf5(folder):
    (folder / "x.h5").write_text("hello")
    h5py.File(folder / "x.h5")


@met("file-truncated")
def a_truncated_npy_file(folder):
    np.save(folder / "x.npy", np.zeros(1000))
    os.truncate(folder / "x.npy", 500)
    np.load(folder / "x.npy")


@met("file-truncated")
def a_truncated_npy_file_that_is_mapped(folder):
    np.save(folder / "x.npy", np.zeros(1000))
    os.truncate(folder / "x.npy", 500)
    np.load(folder / "x.npy", mmap_mode="r")


@met("checkpoint-truncated")
def a_truncated_checkpoint(folder):
    torch.save(torch.ones(1000), folder / "x.pt")
    os.truncate(folder / "x.pt", 500)
    torch.load(folder / "x.pt", weights_only=True)


@met("weights-only")
def a_checkpoint_with_more_than_tensors(folder):
    torch.save(Killed(), folder / "x.pt")
    torch.load(folder / "x.pt", weights_only=True)


@met("dataset-missing")
def a_dataset_that_the_file_does_not_have(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["t2m"] = np.zeros(3)
    h5py.File(folder / "x.h5")["fields"]


@met("file-busy")
def a_file_that_another_process_writes(folder):
    with h5py.File(folder / "x.h5", "w"):
        code = f"import h5py; h5py.File({str(folder / 'x.h5')!r})"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    kind, _, message = run.stderr.strip().splitlines()[-1].partition(": ")
    raise {"BlockingIOError": BlockingIOError}[kind](message)


@met("file-lock-flags")
def a_file_that_is_open_with_and_without_a_lock(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.zeros(3)
    with h5py.File(folder / "x.h5"):
        h5py.File(folder / "x.h5", locking=False)


@met("command-missing")
def a_program_that_is_not_installed(folder):
    with mock.patch.dict(os.environ, {"PATH": str(folder)}):
        subprocess.run(["srun"])


@met("library-missing")
def a_library_that_is_not_installed(folder):
    ctypes.CDLL("libmpi.so.99")


@met("file-missing")
def a_missing_file(folder):
    h5py.File(folder / "nothing.h5")


@met("too-many-files")
def too_many_open_files(folder):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, before[1]))
        for _ in range(200):
            stack.enter_context(open(os.devnull))


@met("no-home")
def a_user_without_a_home(folder):
    with mock.patch.dict(os.environ), mock.patch("pwd.getpwuid", side_effect=KeyError("uid not found: 12345")):
        os.environ.pop("HOME", None)
        Path.home()


@met("no-permission")
def a_place_where_nobody_may_write(folder):
    folder.chmod(0o500)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # the system lets root write anywhere
    try:
        (folder / "x").touch()
    finally:
        os.seteuid(before)


@met("other-device")
def a_layer_on_another_device(folder):
    torch.nn.Linear(3, 4, device="meta")(torch.ones(2, 3))


@met("other-dtype")
def a_product_of_two_dtypes(folder):
    torch.ones(2, 3) @ torch.ones(3, 5, dtype=torch.bfloat16)


@met("other-dtype")
def a_layer_of_another_dtype(folder):
    torch.nn.Linear(3, 4)(torch.ones(2, 3, dtype=torch.bfloat16))


@met("other-dtype")
def a_convolution_of_another_dtype(folder):
    torch.nn.Conv2d(3, 4, 3)(torch.ones(1, 3, 8, 8, dtype=torch.bfloat16))


@met("other-dtype")
def attention_of_two_dtypes(folder):
    q, k = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    functional.scaled_dot_product_attention(q, k, q)


@met("state-dict")
def weights_of_another_model(folder):
    torch.nn.Linear(3, 4).load_state_dict(torch.nn.Linear(3, 5).state_dict())


@met("state-dict-wrapped")
def weights_of_a_compiled_model(folder):
    torch.nn.Linear(3, 4).load_state_dict(torch.compile(torch.nn.Linear(3, 4)).state_dict())


@met("state-dict-wrapped")
def weights_of_a_wrapped_model(folder):
    torch.nn.Linear(3, 4).load_state_dict(torch.nn.DataParallel(torch.nn.Linear(3, 4)).state_dict())


@met("shapes")
def a_product_that_does_not_fit(folder):
    torch.ones(2, 3) @ torch.ones(4, 5)


@met("shapes")
def a_sum_that_does_not_fit(folder):
    torch.ones(2, 3) + torch.ones(2, 4)


@met("shapes")
def a_view_that_does_not_fit(folder):
    torch.ones(2, 3).view(7)


@met("shapes")
def channels_that_do_not_fit(folder):
    torch.nn.Conv2d(3, 4, 3)(torch.ones(1, 5, 8, 8))


@met("shapes")
def a_concatenation_that_does_not_fit(folder):
    torch.cat([torch.ones(2, 3), torch.ones(2, 4)])


@met("shapes")
def targets_that_do_not_fit(folder):
    functional.cross_entropy(torch.ones(2, 3), torch.ones(4).long())


@met("shapes")
def arrays_that_do_not_fit(folder):
    np.ones((2, 3)) + np.ones((2, 4))


@met("shapes")
def matrices_of_numpy_that_do_not_fit(folder):
    np.ones((2, 3)) @ np.ones((2, 4))


@met("backward-twice")
def backward_twice(folder):
    loss = (torch.ones(3, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


@met("no-gradient")
def a_loss_without_weights(folder):
    torch.ones(3).sum().backward()


@met("in-place")
def a_value_that_the_gradient_needs(folder):
    y = torch.ones(3, requires_grad=True).exp()
    y += 1
    y.sum().backward()


@met("in-place")
def a_weight_changed_in_place(folder):
    torch.ones(3, requires_grad=True).add_(1)


@met("blank")
def an_empty_blank(folder):
    raise NotImplementedError


@met("cell-not-run")
def a_name_of_a_cell_that_was_not_run(folder):
    print(model)  # noqa: F821


# What this machine cannot make happen: what torch, CUDA, NCCL and HDF5 say, in the classes in which they say it.
WORDS = {
    "gpu-memory": torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 3.50 GiB is "
        "free. Including non-PyTorch memory, this process has 75.64 GiB memory in use."
    ),
    "shared-memory": RuntimeError(
        "DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's workers are out "
        "of shared memory. Please try to raise your shared memory limit."
    ),
    "collective-timeout": dist.DistBackendError(
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
    ),
    "nccl": dist.DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) failed."
    ),
    "peer-gone": RuntimeError(
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:4321"
    ),
    "driver-old": RuntimeError(
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
        "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
    ),
    "capture": RuntimeError("CUDA error: operation not permitted when stream is capturing"),
    "file-lock": OSError(
        "[Errno 37] Unable to synchronously open file (unable to lock file, errno = 37, error message = 'No locks "
        "available')"
    ),
    "hdf5-fork": OSError("Unable to synchronously open object (bad object header version number)"),
    "disk-error": OSError(5, "Input/output error"),
    "python-headers": RuntimeError(
        "C++ compile error\n\n/tmp/x.cpp:1: fatal error: Python.h: No such file or directory"
    ),
    "name-resolution": RuntimeError(
        "The client socket has failed to connect to any network address of (node-a01, 29500). The IPv6 network "
        "addresses of (node-a01, 29500) cannot be retrieved (gai error: -2 - Name or service not known)."
    ),
    "cuda-broken": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously"),
}
ELSEWHERE = {  # the tests of ranks, and below
    "rank-killed", "rank-aborted", "ranks-differ", "unused-parameters", "git-pull", "main-guard",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "raises"), MET.values(), ids=MET)
def test_an_error_that_is_met_leads_to_its_advice(name, raises, tmp_path):
    with pytest.raises(BaseException) as caught:
        raises(tmp_path)
    found = advice.of(caught.value)
    assert found, repr(caught.value)
    assert found.name == name
    assert advice.of_words(type(caught.value).__name__, str(caught.value)) == found


@pytest.mark.parametrize(("name", "error"), WORDS.items(), ids=WORDS)
def test_the_words_of_an_error_that_this_machine_lacks_lead_to_its_advice(name, error):
    assert advice.of(error).name == name


def test_a_script_without_a_main_guard_leads_to_its_advice(tmp_path):
    script = "import multiprocessing as mp\nmp.get_context('spawn').Process(target=print).start()\n"
    (tmp_path / "script.py").write_text(script)
    told = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120)
    assert advice.of_words("RuntimeError", told.stderr).name == "main-guard"


def test_every_advice_is_met_somewhere():
    assert {one.name for one in advice.table()} == {name for name, _ in MET.values()} | set(WORDS) | ELSEWHERE


@pytest.mark.parametrize("one", advice.table(), ids=lambda one: one.name)
def test_advice_is_one_plain_sentence_and_fits_what_the_page_shows_of_the_error(one):
    assert len(one.do) <= 260
    assert one.do.endswith(".")
    assert one.do.count(". ") == 0
    assert "\n" not in one.do
    assert advice.of_words("", one.example) == one


# What people reported, and what an earlier version answered: delete the file, install g++, make /dev/shm larger.
REPORTED = [
    (
        "OSError",
        "Unable to open file (unable to lock file, errno = 37, error message = 'No locks available')",
        "file-lock",
    ),
    ("OSError", "Unable to synchronously open file (unable to lock file, errno = 5, …)", "file-lock"),
    (
        "BlockingIOError",
        "[Errno 11] Unable to synchronously open file (unable to lock file, errno = 11, …)",
        "file-busy",
    ),
    (
        "PermissionError",
        "[Errno 13] Unable to open file (unable to open file: name = 'x.h5', errno = 13)",
        "no-permission",
    ),
    ("RuntimeError", "unable to open shared memory object </torch_1> … Too many open files (24)", "too-many-files"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'g++'", "compiler"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/era5.zarr/fields'", "file-missing"),
]


@pytest.mark.parametrize(("kind", "message", "name"), REPORTED, ids=[f"{row[2]}: {row[0]}" for row in REPORTED])
def test_errors_that_people_reported_lead_to_their_advice(kind, message, name):
    assert advice.of_words(kind, message).name == name


@pytest.mark.parametrize("one", advice.table(), ids=lambda one: one.name)
def test_no_advice_tells_a_user_to_delete_a_file(one):
    assert not re.search(r"\b(remove|delete|erase|unlink|overwrite|rm)\b", one.do, re.IGNORECASE)


def test_no_message_of_the_course_tells_a_user_to_delete_a_file():
    places = [ROOT / "dltutorial", ROOT / "hub", ROOT / "solutions" / "checks"]
    messages = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for place in places
        for file in place.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Raise, ast.Assign))
    ]
    orders = re.compile(r"(?:[;,:(]|\b(?:or|and|then|please)) (?:remove|delete|erase) (?:it|the|that|this|them|one|\{)")
    assert [message for message in messages if orders.search(message)] == []


def test_troubleshooting_is_the_table():
    assert (ROOT / "TROUBLESHOOTING.md").read_text(encoding="utf-8") == troubleshooting.page()


@pytest.mark.parametrize(
    "error",
    [
        CourseError("cannot write x: No space left on device; make room"),
        DataError("x.h5 is truncated file; make it again"),
        DivergedError("CUDA out of memory"),
        RanksHang("ranks 0, 1 did not end: Timed out waiting 5ms for recv operation", [0, 1]),
        RankFailed("rank 0 of 2 failed: DataError: No such file", 0, "DataError", "No such file"),
        ValueError("learning_rate must be positive"),
        ZeroDivisionError("division by zero"),
    ],
    ids=repr,
)
def test_an_error_of_the_course_and_one_that_nobody_foresaw_get_no_second_advice(error):
    assert advice.of(error) is None
    assert advice.of_words(type(error).__name__, str(error)) is None


@pytest.mark.parametrize("name", ["memory: a_tensor_of_petabytes", "port-in-use: a_store_on_a_bound_port",
                                  "disk-full: a_full_disk", "worker-killed: a_killed_worker",
                                  "file-missing: a_missing_file"])  # fmt: skip
def test_a_command_ends_with_the_advice_in_one_line(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "report", lambda measure: MET[name][1](tmp_path))
    assert cli.main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith(f"{next(one for one in advice.table() if one.name == MET[name][0]).do}\n")
    assert "Traceback" not in said


def test_a_full_gpu_ends_a_command_in_one_line(monkeypatch, capsys):
    def fails(measure):
        raise WORDS["gpu-memory"]

    monkeypatch.setattr(doctor, "report", fails)
    assert cli.main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dltutorial: CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert said.endswith(f"{advice.of(WORDS['gpu-memory']).do}\n")
    assert said.count("\n") == 1


def test_a_mistake_in_code_keeps_its_traceback_which_ends_with_the_advice(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "report", lambda measure: a_product_that_does_not_fit(tmp_path))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        cli.main(["doctor"])
    assert caught.value.__notes__ == [advice.of(caught.value).do]


def test_a_rank_that_failed_in_a_command_keeps_its_traceback_and_gets_the_advice(monkeypatch, capsys):
    def fails(measure):
        text = "rank 1 of 2 failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied\n\nTraceback of rank 1"
        raise RankFailed(text, 1, "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")

    monkeypatch.setattr(doctor, "report", fails)
    assert cli.main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert "Traceback of rank 1" in said
    assert said.strip().splitlines()[-1].startswith("Two shapes do not fit: print x.shape")
