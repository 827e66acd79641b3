"""Checks of the capstone: a training script for several ranks, looked at from outside.

In: the name of the learner's script. It runs in a folder of its own, on two ranks on the CPU, beside a samples.py that
takes notes (``capstone_watch``): left alone, signalled, killed, stopped, and as a Slurm job where Slurm is. Looked at:
the samples of each update, what is printed and written, and the weights, beside one process that trains on the same.
"""

import contextlib
import functools
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.nn import functional as F

from dltutorial.course import guard, scripts
from dltutorial.course.checks import Exercise, NotTried, Outcome, Wrong
from dltutorial.course.checks.capstone_watch import probe
from dltutorial.launch import pocket

_MOST = 2**27  # bytes that a script may print
PATIENCE_S = 90.0  # for ranks that share busy cores
_EPOCHS, _BATCH, _RATE, _SAMPLES = 4, 16, 0.08, 76
_JOB_EPOCHS, _WAIT_S = 2, 5.0
_BASE = 64  # the batch of which --rate is the rate
_UPDATES = math.ceil(_SAMPLES / _BATCH)  # of an epoch
# bf16 keeps 8 bits: a gradient of 16 samples and the mean of two of 8 are rounded apart by up to 2⁻⁸ of their size.
_CLOSE = 0.015  # of the way that the weights went; the mistakes below lead away by more than 0.03 of it
_LINE = re.compile(r"^epoch (\d+): loss (\S+), (\d+) samples in (\S+) s, (\S+) samples/s\s*$", re.MULTILINE)
_SHOWN = "epoch 0: loss 0.123456, 76 samples in 0.1234 s, 616.0 samples/s"
_AGREE = "One rank left, the other waits: all stop after the same update. A flag, summed over the ranks, tells all."
_BLANK = "raise NotImplementedError"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class _Update:
    """What one rank did in one training pass: the numbers of its samples, dtypes of output and weights, a probe."""

    samples: list[int]
    dtypes: list[str]
    probe: list[float]
    time_s: float


@dataclass
class _Run:
    """What became of the ranks of one start.

    Attributes:
        statuses: exit status of each process, torchrun's or the ranks'; None where it did not end in time.
        out: all that was printed.
        took_s: until the last process ended.
        updates: of each rank.
        saves: (rank, file, number of updates made) for each call of torch.save.
        handles: the warnings that each rank does not die of.
        ended: for each rank that came to the end of the script, whether its process group was there still.
    """

    statuses: list[int | None]
    out: str
    took_s: float = 0.0
    updates: dict[int, list[_Update]] = field(default_factory=lambda: {0: [], 1: []})
    saves: list[tuple[int, str, int]] = field(default_factory=list)
    handles: dict[int, list[str]] = field(default_factory=dict)
    ended: dict[int, bool] = field(default_factory=dict)

    @property
    def hangs(self) -> bool:
        return None in self.statuses

    @property
    def last_words(self) -> str:
        """The last line of an error, or else of all that was printed."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception|Interrupt)\b", line)]
        return (errors or lines or ["nothing was printed"])[0 if errors else -1][:200]

    def batch(self, number: int) -> list[int]:
        """The samples of both ranks in the update of this number of this start; empty if there was none."""
        return sorted(i for of in self.updates.values() for update in of[number : number + 1] for i in update.samples)


class _Script:
    """The learner's script, its folder, and its runs; calling it starts it once more."""

    def __init__(self, script: Path, folder: Path) -> None:
        self.folder, self._count = folder, 0
        self.job = script.with_name("capstone.sbatch")
        written = scripts.written(_HERE.parent / "capstone.ipynb")["samples.py"]
        watched = f"{written}\n\nimport capstone_watch  # of the check\n\ncapstone_watch.watch(Network)\n"
        (folder / "samples.py").write_text(watched, encoding="utf-8")
        shutil.copy(_HERE / "capstone_watch.py", folder)
        for file in (script, self.job):
            if file.is_file():
                shutil.copy(file, folder / file.name)
        if script.name != "capstone.py":
            (folder / script.name).rename(folder / "capstone.py")

    def __call__(self, name: str, launcher: str = "torchrun", blow: str = "", wait_s: float = 50.0) -> _Run:
        """Start it on two ranks, to write into the folder of this name; ``launcher``: torchrun, or none of its own."""
        options = f"--epochs {_EPOCHS} --batch {_BATCH} --rate {_RATE} --timeout {wait_s:g}".split()
        arguments, env, notes = ["capstone.py", name, *options], self.environment(), self._notes()
        env |= {"CAPSTONE_NOTES": str(notes)} | ({"CAPSTONE_BLOW": blow} if blow else {})
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *arguments]
        begun_s, out = time.monotonic(), self.folder / f"{notes.name}.out"
        with open(out, "w") as file, contextlib.ExitStack() as stack:
            stack.callback(_end_helpers, str(notes))
            how = {"cwd": self.folder, "stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
            ranks = [{}] if launcher == "torchrun" else _as_torchrun_tells(2)
            command = torchrun if launcher == "torchrun" else [sys.executable, *arguments]
            processes = [
                stack.enter_context(_ended(subprocess.Popen(command, env=env | rank, start_new_session=True, **how)))
                for rank in ranks
            ]
            blown = blow.endswith("SIGSTOP") or blow.endswith("SIGKILL")
            awaited = [p for rank, p in enumerate(processes) if not (blown and rank == int(blow.split()[0]))]
            until_s = begun_s + PATIENCE_S
            while any(p.poll() is None for p in awaited) and time.monotonic() < until_s and out.stat().st_size < _MOST:
                time.sleep(0.02)
            run = _Run([p.poll() for p in awaited], "", time.monotonic() - begun_s)
        run.out = _read(out)
        return _with_notes(run, notes)

    def environment(self) -> dict[str, str]:
        """Without this process's own Slurm job, ranks and course; on the CPU, a thread for each rank."""
        own = ("SLURM_", "TORCHELASTIC", "PYTHONPATH", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        network = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
        quiet = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        return env | network | quiet | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def submitted(self, name: str, cluster: pocket.PocketCluster) -> tuple[str, _Run]:
        """Queue the job script; the state in which the job ended, in Slurm's words, and what its ranks did."""
        notes = self._notes()
        env = self.environment() | cluster.env | {"CAPSTONE_NOTES": str(notes)}
        how = {"cwd": self.folder, "env": env, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        options = f"{name} --epochs {_JOB_EPOCHS} --batch {_BATCH} --rate {_RATE} --timeout 50".split()
        sbatch = ["sbatch", "--parsable", "-o", f"{notes.name}.out", "-e", f"{notes.name}.out", "capstone.sbatch"]
        queued = subprocess.run([*sbatch, *options], timeout=30, **how)
        if queued.returncode:
            raise Wrong("a job that Slurm takes", queued.stderr.strip()[:200], "Submit it yourself: sbatch says why.")
        job, until_s, state = queued.stdout.strip(), time.monotonic() + PATIENCE_S, ""
        going = ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        while state in going and time.monotonic() < until_s:
            asked = subprocess.run(["squeue", "-h", "--states=all", "-j", job, "-o", "%T"], timeout=30, **how)
            state = asked.stdout.strip()
            if state in going:
                time.sleep(0.1)
        subprocess.run(["scancel", job], timeout=30, **how)
        file = self.folder / f"{notes.name}.out"
        out = _read(file) if file.exists() else ""
        return state, _with_notes(_Run([], out), notes)

    @functools.cached_property
    def whole(self) -> _Run:
        """The run that is left alone."""
        return self("whole")

    @functools.cached_property
    def warned(self) -> _Run:
        """Another one, in whose second epoch rank 1 is warned."""
        return self("killed", "none", f"1 {_UPDATES + 2} SIGUSR1")

    @property
    def at_term(self) -> int:
        """The training pass of the next start in which torchrun is told to end: the second of the third epoch."""
        return 2 * _UPDATES + 2 - len(self.warned.updates[0])

    @functools.cached_property
    def terminated(self) -> _Run:
        """The next start of that."""
        return self("killed", "torchrun", f"0 {self.at_term} torchrun")

    def _notes(self) -> Path:
        self._count += 1
        (notes := self.folder / f"notes-{self._count}").mkdir()
        return notes


def _end_helpers(notes: str) -> None:
    """End what a script has started and left, in sessions of its own too: it has the variable."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("CAPSTONE_NOTES") == notes:
                process.kill()


def _read(file: Path) -> str:
    """What was printed, as far as anybody would read it."""
    with open(file, encoding="utf-8", errors="replace") as stream:
        return stream.read(_MOST // 16)


@contextlib.contextmanager
def _ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """The process; in the end it and all that it has started are gone."""
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.Error):
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
        process.wait()


def _as_torchrun_tells(n: int) -> list[dict[str, str]]:
    """What each rank finds in its environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    ranks = ({**where, "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0} for rank in range(n))
    return [{name: str(value) for name, value in rank.items()} for rank in ranks]


def _with_notes(run: _Run, notes: Path) -> _Run:
    for rank in run.updates:
        file = notes / f"rank-{rank}.jsonl"
        for line in file.read_text().splitlines() if file.exists() else []:
            with contextlib.suppress(ValueError):  # cut by a kill
                known = json.loads(line)
                what = known.pop("what")
                if what == "pass":
                    run.updates[rank].append(_Update(**known))
                elif what == "begin":
                    run.handles[rank] = known["handles"]
                elif what == "save":
                    run.saves.append((rank, known["file"], len(run.updates[rank])))
                else:
                    run.ended[rank] = known["group"]
    if _aborted_after_its_end(run):
        run.statuses = [0] * len(run.statuses)
    return run


def _aborted_after_its_end(run: _Run) -> bool:
    """Whether torch aborted a rank after the learner's script had come to its end.

    If one of gloo's threads still releases a tensor while Python ends, the process aborts with SIGABRT
    (https://github.com/pytorch/pytorch/issues/190489). The script is not to blame for that.
    """
    ended_well = run.ended == {0: False, 1: False}
    statuses = {status for status in run.statuses if status}
    if statuses == {1}:  # torchrun's own; it prints the status of each rank that failed
        statuses = {int(status) for status in re.findall(r"exitcode\s*: (-?\d+)", run.out)}
    return ended_well and statuses == {-signal.SIGABRT} and "terminate called without an active exception" in run.out


def _comes_to_its_end(script: _Script) -> None:
    """torchrun starts it on two ranks, and it comes to its end"""
    run = script.whole
    if run.hangs:
        raise Wrong("both ranks end", f"not within {PATIENCE_S:g} s", "Do both ranks call the same collectives?")
    if run.statuses != [0]:
        both = "Both ranks write into one file, and rename it: if rank == 0." if _written_by_both(run) else ""
        raise Wrong("exit status 0", f"{run.statuses[0]}: {run.last_words}", both)
    if not all(run.updates.values()):
        counts = [len(of) for of in run.updates.values()]
        hint = "Each rank makes a Network and trains it on Samples, both imported from samples.py."
        raise Wrong("training passes on both ranks", f"{counts[0]} and {counts[1]}", hint)
    groups = [rank for rank, there in run.ended.items() if there]
    if groups:
        hint = "Leave in order: dist.destroy_process_group() is each rank's last call."
        raise Wrong("no process group at the end", f"still there on rank {groups[0]}", hint)


def _reads_each_sample_once(script: _Script) -> None:
    """In an epoch the ranks read each sample once, in another order in the next"""
    updates = script.whole.updates
    read = {rank: [i for update in of for i in update.samples] for rank, of in updates.items()}
    if len(read[0]) == _EPOCHS * _SAMPLES:
        hint = "Every rank reads everything. A DistributedSampler gives each rank its own part."
        raise Wrong(f"{_SAMPLES // 2} samples of each rank an epoch", f"{_SAMPLES}", hint)
    largest = max(len(update.samples) for update in updates[0])
    if largest != _BATCH // 2:
        hint = "--batch counts the samples of all ranks in one update: each takes its part of them."
        raise Wrong(f"{_BATCH // 2} samples of each rank in an update", largest, hint)
    if len(read[0] + read[1]) < _EPOCHS * _SAMPLES:
        hint = f"{_SAMPLES} samples are no multiple of {_BATCH}: the last batch of an epoch is smaller. Do not drop it."
        raise Wrong(f"{_EPOCHS * _SAMPLES} samples in {_EPOCHS} epochs", len(read[0] + read[1]), hint)
    if any(len(of) != _EPOCHS * _UPDATES for of in updates.values()):
        counts = " and ".join(str(len(of)) for of in updates.values())
        hint = f"{_UPDATES} an epoch, --epochs times: one training pass of each rank an update."
        raise Wrong(f"{_EPOCHS * _UPDATES} updates on each rank", counts, hint)
    orders = []
    for epoch in range(_EPOCHS):
        part = range(epoch * _UPDATES, (epoch + 1) * _UPDATES)
        orders.append([i for number in part for i in script.whole.batch(number)])
        if sorted(orders[-1]) != list(range(_SAMPLES)):
            twice = len(orders[-1]) - len(set(orders[-1]))
            hint = "Some samples are read twice, others never: all ranks must cut one common order."
            raise Wrong(f"each of {_SAMPLES} samples once in epoch {epoch}", f"{twice} twice", hint)
    if orders[0] == orders[1]:
        hint = "Each epoch has the order of the first one: tell the sampler, sampler.set_epoch(epoch)."
        raise Wrong("another order in the second epoch", "the same order", hint)
    if orders[0] == sorted(orders[0]):
        raise Wrong("a random order", "0, 1, 2, …", "Shuffle, from a seed that all ranks share.")


def _is_mixed(script: _Script) -> None:
    """Outputs are bfloat16, weights float32"""
    outputs, weights = script.whole.updates[0][0].dtypes
    if weights != "torch.float32":
        hint = "Small updates vanish in 16 bits. Keep the weights in float32; autocast rounds copies of them."
        raise Wrong("weights in torch.float32", weights, hint)
    if outputs != "torch.bfloat16":
        hint = "Forward pass and loss stand inside torch.autocast(device.type, torch.bfloat16); CPUs can do it, too."
        raise Wrong("outputs in torch.bfloat16", outputs, hint)


def _one_process(
    run: _Run, begin: Path, mistake: str = "", epochs: int = _EPOCHS
) -> tuple[torch.Tensor, list[list[float]]]:
    """One process that trains on both ranks' samples, or with a well-known mistake.

    Returns:
        Its weights in one row; for each epoch the mean loss of all samples, of rank 0's and of rank 1's.
    """
    space: dict[str, Any] = {"__name__": "samples"}
    exec(scripts.written(_HERE.parent / "capstone.ipynb")["samples.py"], space)
    data, network, means = space["Samples"](), space["Network"](), []
    network.load_state_dict(torch.load(begin, weights_only=True))
    rate = _RATE * _BATCH / _BASE * {"rate": _BASE / _BATCH, "double": 2.0, "half": 0.5}.get(mistake, 1.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    for epoch in range(epochs):
        losses: list[list[float]] = [[], []]
        for number in range(epoch * _UPDATES, (epoch + 1) * _UPDATES):
            parts = [run.updates[rank][number].samples for rank in (0, 1)]
            indices = parts[0] + ([] if mistake == "alone" else parts[1])
            with torch.autocast("cpu", torch.bfloat16):
                loss_N = F.mse_loss(network(data.x_N9[indices]), data.y_N1[indices], reduction="none")
            if mistake != "zero":
                optimizer.zero_grad()
            (loss_N.sum() / _BATCH if mistake == "short" else loss_N.mean()).backward()
            optimizer.step()
            losses[0] += loss_N[: len(parts[0])].flatten().tolist()
            losses[1] += loss_N[len(parts[0]) :].flatten().tolist()
        means.append([sum(part) / max(1, len(part)) for part in (losses[0] + losses[1], *losses)])
    return _row(network.state_dict()), means


def _row(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in weights.values()])


def _weights(file: Path, like: Path) -> torch.Tensor:
    """What the script left as model.pt, in one row."""
    if not file.exists():
        hint = "After the last epoch rank 0 writes the network's state_dict() as model.pt into FOLDER."
        raise Wrong("model.pt in FOLDER", "no such file", hint)
    try:
        found = torch.load(file, weights_only=True)
    except Exception as error:
        hint = "torch.save(network.state_dict(), …)"
        raise Wrong("a state_dict in model.pt", guard.last_words(error), hint) from None
    names = list(torch.load(like, weights_only=True))
    if not isinstance(found, dict) or list(found) != names:
        got = list(found)[:1] if isinstance(found, dict) else type(found).__name__
        hint = "Names that begin with module. are those of DDP's wrapper: save what is inside it."
        raise Wrong(f"weights named {names[0]}, …", got, hint if "module." in str(got) else "")
    return _row(found)


def _trains_as_one(script: _Script) -> None:
    """Weights are those of one process with the same global batch"""
    begins = [script.folder / "notes-1" / f"begin-{rank}.pt" for rank in (0, 1)]
    got = _weights(script.folder / "whole" / "model.pt", begins[0])
    begin, other = (_row(torch.load(file, weights_only=True)) for file in begins)
    if not torch.equal(begin, other):
        hint = "Each rank begins with weights of its own. DistributedDataParallel sends rank 0's to all."
        raise Wrong("the same weights on both ranks before the first update", "different ones", hint)
    wanted, _ = _one_process(script.whole, begins[0])
    way = (wanted - begin).norm()
    if (got - wanted).norm() <= _CLOSE * way:
        return
    after_one = script.whole.updates[0][_UPDATES].probe  # one epoch: later, some mistakes lead anywhere
    mistakes = {
        "alone": "The gradients are not averaged: wrap the network in DistributedDataParallel, and call the wrapper.",
        "rate": f"--rate is that of a batch of {_BASE}: scale it linearly with --batch.",
        "double": "Each update is twice as long as it should be: a sum of gradients, or a rate times the ranks.",
        "half": "Each update is half as long as it should be: DDP has divided by the number of ranks already.",
        "zero": "Gradients of earlier updates stay: zero_grad() in each update.",
        "short": "The last batch of an epoch is smaller: divide its losses by its own size, not by --batch.",
    }
    for mistake, hint in mistakes.items():
        row = probe(_one_process(script.whole, begins[0], mistake, epochs=1)[0])
        if math.dist(row, after_one) <= _CLOSE * math.dist(row, probe(begin)):
            raise Wrong("the weights of one process", f"those of {mistake!r}", hint)
    off = float((got - wanted).norm() / way)
    told = f"within {_CLOSE:.0%} of the way they went"
    hint = f"Loss: F.mse_loss. Optimizer: torch.optim.SGD, momentum 0.9, rate --rate × --batch / {_BASE}, constant."
    raise Wrong(f"the weights of one process, {told}", f"{off:.0%} off", hint)


def _prints(script: _Script) -> None:
    """Rank 0 prints the mean loss and the throughput of all ranks, epoch by epoch"""
    run, lines = script.whole, _LINE.findall(script.whole.out)
    numbers = [line[0] for line in lines]
    if numbers != [str(epoch) for epoch in range(_EPOCHS)]:
        n = len(re.findall(r"epoch \d+: loss", run.out))
        hint = "One rank prints for all." if n == 2 * _EPOCHS else f"Like this: {_SHOWN}"
        raise Wrong(f"{_EPOCHS} lines, one an epoch", f"{len(numbers)} such lines", hint)
    begin = script.folder / "notes-1" / "begin-0.pt"
    means = _one_process(run, begin)[1]
    for epoch, (_, *texts) in enumerate(lines):
        try:
            loss, samples, took_s, rate = map(float, texts)
        except ValueError:
            raise Wrong("numbers", " ".join(texts), f"Like this: {_SHOWN}") from None
        if samples != _SAMPLES:
            hint = "The throughput is that of all ranks: sum their samples."
            raise Wrong(f"{_SAMPLES} samples", f"{samples:g} samples", hint)
        # Rank 0's alone, which prints: the other may begin its epoch while this one still writes a checkpoint.
        times = [update.time_s for update in run.updates[0][epoch * _UPDATES :][:_UPDATES]]
        span_s, rounded_s = max(times) - min(times), 0.5 * 0.1 ** len(texts[2].partition(".")[2])
        if not span_s <= took_s + rounded_s <= run.took_s:
            hint = "Read the clock before an epoch's first batch and after its last; print four decimals."
            raise Wrong(f"{span_s:.4f} s or more in epoch {epoch}", f"{texts[2]} s", hint)
        fastest = samples / max(took_s - rounded_s, 1e-9)
        if not samples / (took_s + rounded_s) * 0.99 <= rate <= fastest * 1.01:
            hint = "All ranks' samples over seconds."
            raise Wrong(f"{samples / took_s:.1f} samples/s in epoch {epoch}", f"{rate:g}", hint)
        wanted, *of_ranks = means[epoch]
        if not math.isclose(loss, wanted, rel_tol=0.01):
            hint = "It is the mean over all samples of the epoch, of both ranks."
            if any(math.isclose(loss * share, one, rel_tol=0.01) for one in of_ranks for share in (1, 2)):
                hint = "That is the loss of one rank's samples alone: sum over the ranks, dist.all_reduce."
            raise Wrong(f"loss {wanted:.4f} in epoch {epoch}", f"{loss:.4f}", hint)


def _written_by_both(run: _Run) -> set[str]:
    files = [{file for rank, file, _ in run.saves if rank == one} for one in (0, 1)]
    return files[0] & files[1]


def _one_rank_writes(script: _Script) -> None:
    """No file is written by two ranks"""
    if both := _written_by_both(script.whole):
        hint = "Both ranks write into one file: if rank == 0."
        raise Wrong("a file of rank 0's alone", f"{Path(min(both)).name} is written by both", hint)


def _asks_slurm(script: _Script) -> None:
    """capstone.sbatch asks for a time limit, and for a warning before it"""
    if not script.job.exists() or _BLANK in script.job.read_text(encoding="utf-8"):
        hint = "What you type in a terminal, with srun before it and what Slurm needs above."
        raise Wrong("a job script, capstone.sbatch", "the blank", hint)
    asked = re.findall(r"^#SBATCH\s+(.*)", script.job.read_text(encoding="utf-8"), re.MULTILINE)
    if not re.search(r"(^|\s)(-t\s*\d|--time[\s=])", "\n".join(asked)):
        hint = "#SBATCH --time=…: without it a site refuses the job, or lets it wait for long."
        raise Wrong("a time limit in the job script", "none", hint)
    if not re.search(r"(^|\s)--signal\b", "\n".join(asked)):
        hint = "#SBATCH --signal=TERM@120: else the job's first news of its end is the end."
        raise Wrong("a warning in the job script", "none", hint)


def _place(updates: list[_Update], update: _Update) -> int | None:
    return next((n for n, one in enumerate(updates) if one.samples == update.samples), None)


def _goes_on(script: _Script, run: _Run, after: int, advice: str = "") -> None:
    """This start went on after so many updates with samples, weights and momentum of the run that was left alone."""
    whole, first = script.whole, run.batch(0)
    if not all(run.updates.values()):
        if run.hangs:
            raise Wrong("it goes on", "it hangs before the first update", advice or "Do all ranks read the checkpoint?")
        raise Wrong(f"it goes on after {after} updates", f"{run.statuses}: {run.last_words}", advice)
    found = next((n for n in range(_EPOCHS * _UPDATES) if whole.batch(n) == first), None)
    if found != after:
        hint = advice or "Which checkpoint is the newest, and how many updates had been made then?"
        if found is None:
            hint = "After a restart the epoch has other samples: its order must follow from the epoch's number alone."
            by_rank = [_place(whole.updates[rank], run.updates[rank][0]) for rank in (0, 1)]
            if None not in by_rank and by_rank[0] != by_rank[1]:
                hint = "The ranks go on at different places: each of them reads the checkpoint."
        elif found == 0:
            hint = advice or "It began anew: no checkpoint was written, or none was looked for at the start."
        elif found == after // _UPDATES * _UPDATES:
            hint = advice or "It begins the epoch anew, so samples come twice: skip the batches that were done."
        got = "another batch" if found is None else f"update {found + 1}"
        raise Wrong(f"it goes on with update {after + 1}", got, hint)
    begin = torch.tensor(whole.updates[0][0].probe)
    for number in range(min(map(len, run.updates.values()))):
        wanted = torch.tensor(whole.updates[0][after + number].probe)
        for rank, updates in run.updates.items():
            if (torch.tensor(updates[number].probe) - wanted).norm() > 1e-3 * (wanted - begin).norm():
                hint = "The weights are not those of the checkpoint, or not on every rank: load_state_dict."
                if number:
                    hint = "The weights are, but the optimizer's momentum is not: save and load its state_dict, too."
                raise Wrong(f"the weights before update {after + number + 1}", f"others on rank {rank}", hint)


def _stopped(run: _Run, at: int, name: str) -> None:
    """This start ended in order soon after the signal that came in its training pass ``at``."""
    counts = [len(updates) for updates in run.updates.values()]
    if run.hangs:
        raise Wrong("all ranks end", f"after {counts[0]} and {counts[1]} updates they wait", _AGREE)
    if sorted(run.ended) != [0, 1] or any(run.ended.values()):
        hint = _AGREE if re.search(r"gloo|[Cc]onnection|[Tt]imed out", run.last_words) else ""
        if "DataLoader worker" in run.last_words:
            hint = f"The signal goes to a rank's DataLoader workers, too: worker_init_fn lets them ignore {name}."
        elif any(name not in known for known in run.handles.values()):
            hint = f"{name} ended a rank at once. Let signal.signal({name}, …) take a note, before training begins."
        raise Wrong("both ranks come to an end in order", run.last_words, hint)
    if run.saves and max(made for _, _, made in run.saves) < counts[0]:
        hint = "A warned script saves before it leaves: what was done since the epoch began is lost."
        raise Wrong(f"a checkpoint after {counts[0]} updates", "none", hint)
    if counts[0] >= _EPOCHS * _UPDATES or counts[0] > at + 1:
        hint = "Until an epoch's end it may take longer than the warning leaves: look at the note after each update."
        raise Wrong(f"it stops after {name}", f"{counts[0] - at} more updates", hint)


def _a_warning_stops_all(script: _Script) -> None:
    """SIGUSR1 reaches one rank: all stop after the same update"""
    run = script.warned
    _stopped(run, _UPDATES + 2, "SIGUSR1")
    if any(run.statuses):
        raise Wrong("exit status 0 of both ranks", str(run.statuses), "A warned script ends as at a good end.")


def _goes_on_after_a_warning(script: _Script) -> None:
    """Started again it goes on with the next update, until torchrun hands on SIGTERM"""
    done = len(script.warned.updates[0])
    run = script.terminated
    _goes_on(script, run, done)
    _stopped(run, script.at_term, "SIGTERM")


def _survives_a_kill(script: _Script) -> None:
    """SIGKILL ends one rank: the other ends, and the next start goes on from the last checkpoint"""
    done = len(script.warned.updates[0]) + len(script.terminated.updates[0])
    run = script("killed", "none", "1 2 SIGKILL")
    _goes_on(script, run, done)
    if run.hangs:
        hint = "Rank 0 waits for a dead rank. Let errors of collectives end the script: catch none of them."
        raise Wrong("rank 0 ends, too", "it waits", hint)
    if run.statuses == [0]:
        raise Wrong("rank 0 ends with an error", "exit status 0", "An except hides that the other rank is gone.")
    run = script("killed", "none", "-1 2 writing")
    _goes_on(script, run, done)
    wrote_at, due = done + len(run.updates[0]), math.ceil((done + 1) / _UPDATES) * _UPDATES
    if -signal.SIGXFSZ not in run.statuses or wrote_at != due:
        hint = "At the end of each epoch rank 0 writes a checkpoint: not every stop comes with a warning."
        raise Wrong(f"a checkpoint after update {due}", f"none until update {wrote_at}", hint)
    if run.hangs:
        raise Wrong("rank 1 ends, too", "it waits for a dead rank", "Let errors of collectives end the script.")
    run = script("killed")
    hint = "A kill in the midst of writing must leave the one before it whole: write to another name, then rename."
    _goes_on(script, run, done, hint)
    if run.statuses != [0]:
        raise Wrong("exit status 0", f"{run.statuses[0]}: {run.last_words}")
    begin = script.folder / "notes-1" / "begin-0.pt"
    got, wanted = (_weights(script.folder / name / "model.pt", begin) for name in ("killed", "whole"))
    off = float((got - wanted).norm() / wanted.norm())
    if off > 1e-5:
        raise Wrong("the weights of the run that was left alone", f"others, {off:.1e} apart", "What was forgotten?")


def _gives_up_waiting(script: _Script) -> None:
    """A rank no longer answers: the other ends after --timeout seconds"""
    run = script("stopped", "none", "1 2 SIGSTOP", wait_s=_WAIT_S)
    if run.hangs:
        hint = "By default a rank waits half an hour. init_process_group(…, timeout=timedelta(seconds=…))"
        raise Wrong(f"an error after {_WAIT_S:g} s", f"it still waits after {run.took_s:.0f} s", hint)
    if run.statuses == [0]:
        raise Wrong("rank 0 ends with an error", "exit status 0", "An except hides that the other rank is gone.")


def _runs_as_a_job(script: _Script) -> None:
    """capstone.sbatch runs it as a Slurm job"""
    cluster = pocket.own("capstone", nodes=1)
    if cluster is None:
        raise NotTried(f"no Slurm here; {pocket.INSTALL}")
    try:
        state, run = script.submitted("job", cluster)
    finally:
        pocket.down(cluster.name)
    if state != "COMPLETED":
        hint = 'srun torchrun … capstone.py "$@": the job\'s arguments are those of the script.' * (state == "FAILED")
        raise Wrong("the job ends as COMPLETED", f"{state or 'unknown'}: {run.last_words}", hint)
    read = sorted(i for updates in run.updates.values() for update in updates for i in update.samples)
    if read != sorted([*range(_SAMPLES)] * _JOB_EPOCHS):
        counts = [len(updates) for updates in run.updates.values()]
        hint = '--nproc-per-node 2, and the job\'s arguments handed on: "$@".'
        raise Wrong(f"{_JOB_EPOCHS} epochs on two ranks", f"{counts[0]} and {counts[1]} updates", hint)


class _Capstone(Exercise):
    """An exercise whose answer is a file."""

    def examine(self, fn: Any) -> Outcome:
        """Run the cases on the script of this name."""
        if fn is ... or fn is None:
            return Outcome("not attempted")
        file = Path(fn) if isinstance(fn, (str, Path)) else Path()
        if not file.is_file():
            return Outcome("wrong", (), "a script", "the name of a file that lies here", guard.brief(fn))
        text = file.read_text(encoding="utf-8", errors="replace")
        if _BLANK in text:
            return Outcome("not attempted")
        if re.search(r"^\s*(from|import) dltutorial", text, re.MULTILINE):
            hint = "It is to run wherever torch is. Write what you need."
            return Outcome("wrong", (), "a script of its own", "nothing of the course", "import dltutorial", hint)
        with tempfile.TemporaryDirectory() as folder:
            return super().examine(_Script(file, Path(folder)))


EXERCISE = _Capstone(
    name="capstone",
    chapter="capstone",
    cases=(
        _comes_to_its_end,
        _reads_each_sample_once,
        _is_mixed,
        _trains_as_one,
        _prints,
        _one_rank_writes,
        _asks_slurm,
        _a_warning_stops_all,
        _goes_on_after_a_warning,
        _survives_a_kill,
        _gives_up_waiting,
        _runs_as_a_job,
    ),
    hints=(
        "Begin with ddp.py of chapter 09: it runs on two ranks. Then add one row of the table at a time.",
        "checkpoint.py of chapter 10 has the file that is whole or not there, and the handler that only takes a note.",
        "Start it by hand, and kill it by hand: ps, kill -USR1, kill -9. What does the next start print?",
    ),
    code=(
        "stop = torch.tensor(float(bool(warned)))",
        "dist.all_reduce(stop)  # any rank's note is all ranks' note",
        "for epoch in range(done // len(loader), args.epochs):",
        "    for update, (x, y) in enumerate(loader, epoch * len(loader) + 1):",
        "        if update <= done:",
        "            continue",
    ),
    deadline_s=600.0,
)
