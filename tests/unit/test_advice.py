"""An error, and the example that the table shows for each advice, lead to the advice for their cause.

The errors of ranks are in tests/parallel/test_advice_of_ranks.py, those of a GPU in tests/gpu/test_advice_on_cuda.py.
"""

import ctypes
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import torch.distributed as dist
import troubleshooting
from torch.utils.data import DataLoader, Dataset

from dltutorial import advice, cli
from dltutorial.course import doctor
from dltutorial.errors import CourseError, DataError
from dltutorial.launch import RankFailed, RanksHang

ROOT = Path(__file__).parents[2]


def full_disk(folder):
    """Write to the device that accepts no byte."""
    with open("/dev/full", "wb", 0) as file:
        file.write(b"x")


class KilledWorker(Dataset):
    """A data set whose worker is killed, as when memory runs out."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def read_in_a_killed_worker(folder):
    next(iter(DataLoader(KilledWorker(), num_workers=1)))


def spawn_a_lambda(folder):
    """Start a process as a DataLoader starts its workers where it cannot fork."""
    multiprocessing.get_context("spawn").Process(target=lambda: 1).start()


def use_a_bound_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        dist.TCPStore("127.0.0.1", server.getsockname()[1], 1, True)


def use_a_missing_gpu(folder):
    if torch.cuda.is_available():
        torch.ones(1, device=f"cuda:{torch.cuda.device_count() + 7}")
    torch.ones(1, device="cuda")


def compile_without_a_compiler(folder):
    import torch._inductor.cpp_builder  # loaded by torch.compile

    with torch._inductor.config.patch({"cpp.cxx": (str(folder / "no-compiler"),)}):
        torch._inductor.cpp_builder.get_cpp_compiler()


def read_truncated(name, write, read):
    """Return a call that reads a file of which only the first half is there."""

    def call(folder):
        file = folder / name
        write(file)
        os.truncate(file, file.stat().st_size // 2)
        read(file)

    return call


def write_hdf5(file):
    with h5py.File(file, "w") as h5:
        h5["x"] = np.zeros(10_000)


def read_text_as_hdf5(folder):
    (folder / "x.h5").write_text("hello")
    h5py.File(folder / "x.h5")


def load_more_than_tensors(folder):
    torch.save(KilledWorker(), folder / "x.pt")
    torch.load(folder / "x.pt", weights_only=True)


def read_a_missing_dataset(folder):
    write_hdf5(folder / "x.h5")
    with h5py.File(folder / "x.h5") as h5:
        h5["fields"]


def open_with_and_without_a_lock(folder):
    write_hdf5(folder / "x.h5")
    with h5py.File(folder / "x.h5"):
        h5py.File(folder / "x.h5", locking=False)


def backward_twice(folder):
    loss = (torch.ones(3, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def change_what_backward_needs(folder):
    y = torch.ones(3, requires_grad=True).exp()
    y += 1
    y.sum().backward()


def empty_blank(folder):
    raise NotImplementedError


def load_weights_of_another_model(folder):
    torch.nn.Linear(3, 4).load_state_dict(torch.nn.Linear(3, 5).state_dict())


def load_weights_of_a_wrapped_model(folder):
    torch.nn.Linear(3, 4).load_state_dict(torch.nn.DataParallel(torch.nn.Linear(3, 4)).state_dict())


x_23 = torch.ones(2, 3)
# (advice, a call that raises the error, as it happens in a learner's cell). The call gets a folder.
REAL = [
    ("memory", lambda folder: torch.empty(10**15)),
    ("memory", lambda folder: np.empty(10**15)),
    ("disk-full", full_disk),
    ("worker-killed", read_in_a_killed_worker),
    ("pickle", spawn_a_lambda),
    ("port-in-use", use_a_bound_port),
    ("no-group", lambda folder: dist.all_reduce(torch.ones(1))),
    ("no-rank-variables", lambda folder: dist.init_process_group("gloo")),
    ("no-gpu", use_a_missing_gpu),
    ("compiler", compile_without_a_compiler),
    ("module-missing", lambda folder: __import__("no_such_module_at_all")),
    ("file-truncated", read_truncated("x.h5", write_hdf5, h5py.File)),
    ("file-truncated", read_truncated("x.npy", lambda file: np.save(file, np.zeros(1000)), np.load)),
    ("checkpoint-truncated", read_truncated("x.pt", lambda file: torch.save(torch.ones(1000), file), torch.load)),
    ("no-hdf5", read_text_as_hdf5),
    ("weights-only", load_more_than_tensors),
    ("dataset-missing", read_a_missing_dataset),
    ("file-lock-flags", open_with_and_without_a_lock),
    ("command-missing", lambda folder: subprocess.run(["srun"], env={"PATH": str(folder)})),
    ("library-missing", lambda folder: ctypes.CDLL("libmpi.so.99")),
    ("file-missing", lambda folder: h5py.File(folder / "nothing.h5")),
    ("other-device", lambda folder: torch.nn.Linear(3, 4, device="meta")(x_23)),
    ("other-dtype", lambda folder: torch.nn.Linear(3, 4)(x_23.bfloat16())),
    ("other-dtype", lambda folder: torch.nn.Conv1d(2, 4, 3)(x_23.bfloat16())),
    ("state-dict", load_weights_of_another_model),
    ("state-dict-wrapped", load_weights_of_a_wrapped_model),
    ("shapes", lambda folder: x_23 @ torch.ones(4, 5)),
    ("shapes", lambda folder: x_23 + torch.ones(2, 4)),
    ("shapes", lambda folder: torch.nn.Conv2d(3, 4, 3)(torch.ones(1, 5, 8, 8))),
    ("shapes", lambda folder: np.ones((2, 3)) @ np.ones((2, 4))),
    ("backward-twice", backward_twice),
    ("no-gradient", lambda folder: torch.ones(3).sum().backward()),
    ("in-place", change_what_backward_needs),
    ("one-value-per-channel", lambda folder: torch.nn.BatchNorm1d(4)(torch.ones(1, 4))),
    ("blank", empty_blank),
    ("cell-not-run", lambda folder: model),  # noqa: F821
]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "call"), REAL, ids=[name for name, _ in REAL])
def test_a_real_error_leads_to_its_advice(name, call, tmp_path):
    with pytest.raises(BaseException) as caught:
        call(tmp_path)
    entry = advice.of(caught.value)
    assert entry, repr(caught.value)
    assert entry.name == name
    assert advice.of_words(type(caught.value).__name__, str(caught.value)) == entry


def test_a_script_without_a_main_guard_leads_to_its_advice(tmp_path):
    script = "import multiprocessing as mp\nmp.get_context('spawn').Process(target=print).start()\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120)
    assert advice.of_words("RuntimeError", done.stderr).name == "main-guard"


@pytest.mark.parametrize("entry", advice.table(), ids=lambda entry: entry.name)
def test_advice_is_a_cause_and_a_fix_in_one_line_fits_its_example_and_deletes_no_file(entry):
    cause, _, fix = entry.do.partition(". ")
    assert cause
    assert fix.endswith(".")
    assert len(entry.do) <= 260
    assert ": " not in entry.do
    assert "\n" not in entry.do
    assert advice.of_words("", entry.example) == entry
    assert not re.search(r"\b(remove|delete|erase|unlink|overwrite|rm)\b", entry.do, re.IGNORECASE)


# Messages that differ only in some words, and whose causes differ.
SIMILAR = [
    ("unable to lock file, errno = 11, error message = 'Resource temporarily unavailable'", "file-busy"),
    ("[Errno 11] Resource temporarily unavailable", "too-many-threads"),
    ("unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)", "too-many-files"),
    ("unable to open shared memory object </torch_1> in read-write mode: Permission denied (13)", "shared-memory"),
    ("Gloo connectFullMesh failed with [pair.cc:152] timed out connecting", "rendezvous-timeout"),
    ("Timed out after 61 seconds waiting for clients. 1/2 clients joined.", "rendezvous-timeout"),
    ("train.py FAILED\n exitcode  : -9 (pid: 123)\n Signal 9 (SIGKILL) received by PID 123", "rank-killed"),
    ("/lib64/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by x.so)", "library-version"),
    ("unable to lock file, errno = 37, error message = 'No locks available'", "file-lock"),
    ("unable to lock file, errno = 5, …", "file-lock"),
    ("DistBackendError: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", "collective-timeout"),
    ("DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.21.5", "nccl"),
    ("[Errno 2] No such file or directory: 'g++'", "compiler"),
    ("[Errno 2] No such file or directory: '/data/era5.zarr/fields'", "file-missing"),
]


@pytest.mark.parametrize(("message", "name"), SIMILAR)
def test_similar_messages_lead_to_the_advice_for_their_own_cause(message, name):
    assert advice.of_words("OSError", message).name == name


def test_troubleshooting_is_the_table():
    assert (ROOT / "TROUBLESHOOTING.md").read_text(encoding="utf-8") == troubleshooting.page()


@pytest.mark.parametrize(
    "error",
    [
        CourseError("cannot write x: No space left on device; make room"),
        DataError("x.h5 is truncated file; make it again"),
        CourseError("CUDA out of memory"),
        RanksHang("ranks 0, 1 did not end: Timed out waiting 5ms for recv operation", [0, 1]),
        RankFailed("rank 0 of 2 failed: DataError: No such file", 0, "DataError", "No such file"),
        ValueError("learning_rate must be positive"),
        ZeroDivisionError("division by zero"),
        EOFError("EOF when reading a line"),  # input() in a rank
    ],
    ids=repr,
)
def test_an_error_of_the_course_and_one_that_nobody_foresaw_get_no_second_advice(error):
    assert advice.of(error) is None
    assert advice.of_words(type(error).__name__, str(error)) is None


def raised(error):
    """Return a function that raises this error instead of a doctor's report."""

    def report(measure):
        raise error

    return report


def test_a_mistake_in_code_keeps_its_traceback_which_ends_with_the_advice(monkeypatch):
    monkeypatch.setattr(doctor, "report", lambda measure: x_23 @ torch.ones(4, 5))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        cli.main(["doctor"])
    assert caught.value.__notes__ == [advice.of(caught.value).do]


def test_a_rank_that_failed_in_a_command_keeps_its_traceback_and_gets_the_advice(monkeypatch, capsys):
    text = "rank 1 of 2 failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied\n\nTraceback of rank 1"
    message = "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"
    monkeypatch.setattr(doctor, "report", raised(RankFailed(text, 1, "RuntimeError", message)))
    assert cli.main(["doctor"]) == 2
    stderr = capsys.readouterr().err
    assert "Traceback of rank 1" in stderr
    assert stderr.strip().splitlines()[-1].startswith("Two shapes do not fit. Print x.shape")
