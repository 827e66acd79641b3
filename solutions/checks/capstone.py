"""Checks of the capstone: a training script for several ranks, examined from outside.

The input is the name of the learner's script. It runs on two ranks of the CPU (see ``capstone_script``): undisturbed,
with a warning signal, killed, with a rank that no longer answers, and as a Slurm job if Slurm is installed. The checks
compare the samples of each update, the printed lines, the written files and the weights with those of one process that
trains on the same samples.

Legend: N samples of one update, or all weights in one row.

Source: https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

import math
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dltutorial.course import guard, scripts
from dltutorial.course.checks import Exercise, NotTried, Outcome, Wrong
from dltutorial.course.checks.capstone_script import (
    BATCH,
    N_EPOCHS,
    N_JOB_EPOCHS,
    N_SAMPLES,
    N_UPDATES,
    RATE,
    Fault,
    Run,
    Script,
    Update,
)
from dltutorial.course.checks.capstone_watch import probe
from dltutorial.launch import pocket

PATIENCE_S = 90.0  # for ranks that share busy cores
_N_ALL_UPDATES = N_EPOCHS * N_UPDATES
_TIMEOUT_S = 5.0  # the option --timeout of the case with a rank that no longer answers
_BASE = 64  # the batch to which --rate belongs
# bf16 has 8 significant bits: a gradient of 16 samples and the mean of two of 8 differ by up to 2⁻⁸ of their size.
_TOLERANCE = 0.015  # relative to the change of the weights; the mistakes below change them by more than 0.03 of it
_LINE = re.compile(r"^epoch (\d+): loss (\S+), (\d+) samples in (\S+) s, (\S+) samples/s\s*$", re.MULTILINE)
_LIKE_THIS = "Like this: epoch 0: loss 0.123456, 76 samples in 0.1234 s, 616.0 samples/s"
_AGREE = "One rank left, the other waits: all stop after the same update. A flag, summed over the ranks, tells all."
_BOTH_WRITE = "Both ranks write into one file: if rank == 0."
_HIDDEN_ERROR = "An except hides that the other rank is gone."
_BLANK = "raise NotImplementedError"
_NOTEBOOK = Path(__file__).parents[1] / "capstone.ipynb"


class Mistake(NamedTuple):
    """A known mistake of a training script, and its hint.

    Attributes:
        hint: The hint.
        rate_factor: The factor by which the learning rate is wrong.
        only_rank_0: Whether a rank trains on its own gradients alone.
        keeps_gradients: Whether the gradients of earlier updates stay.
        divides_by_batch: Whether the sum of the losses is divided by --batch, also in a smaller batch.
    """

    hint: str = ""
    rate_factor: float = 1.0
    only_rank_0: bool = False
    keeps_gradients: bool = False
    divides_by_batch: bool = False


_NO_MISTAKE = Mistake()
_MISTAKES = (
    Mistake(
        "The gradients are not averaged: wrap the network in DistributedDataParallel, and call the wrapper.",
        only_rank_0=True,
    ),
    Mistake(f"--rate is that of a batch of {_BASE}: scale it linearly with --batch.", rate_factor=_BASE / BATCH),
    Mistake(
        "Each update is twice as long as it should be: a sum of gradients, or a rate times the ranks.", rate_factor=2.0
    ),
    Mistake(
        "Each update is half as long as it should be: DDP has divided by the number of ranks already.", rate_factor=0.5
    ),
    Mistake("Gradients of earlier updates stay: zero_grad() in each update.", keeps_gradients=True),
    Mistake(
        "The last batch of an epoch is smaller: divide its losses by its own size, not by --batch.",
        divides_by_batch=True,
    ),
)


@dataclass(frozen=True)
class Reference:
    """The result of one process that trains on the samples of both ranks.

    Attributes:
        weights_N: The weights at the end.
        losses: For each epoch the mean loss of all samples, of rank 0's samples, and of rank 1's.
    """

    weights_N: Tensor
    losses: list[tuple[float, float, float]]


def _train_in_one_process(run: Run, begin: Path, mistake: Mistake = _NO_MISTAKE, n_epochs: int = N_EPOCHS) -> Reference:
    """Train in this process on the samples of both ranks, update by update, correctly or with a known mistake."""
    space: dict[str, Any] = {"__name__": "samples"}
    exec(scripts.written(_NOTEBOOK)["samples.py"], space)
    data = space["Samples"]()
    network = space["Network"]()
    network.load_state_dict(torch.load(begin, weights_only=True))
    rate = RATE * BATCH / _BASE * mistake.rate_factor
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    losses = []
    for epoch in range(n_epochs):
        of_rank: tuple[list[float], list[float]] = ([], [])
        for number in range(epoch * N_UPDATES, (epoch + 1) * N_UPDATES):
            n_rank_0 = len(run.updates[0][number].samples)
            samples = run.updates[0][number].samples + run.updates[1][number].samples
            if mistake.only_rank_0:
                samples = samples[:n_rank_0]
            with torch.autocast("cpu", torch.bfloat16):
                loss_N = F.mse_loss(network(data.x_N9[samples]), data.y_N1[samples], reduction="none")
            if not mistake.keeps_gradients:
                optimizer.zero_grad()
            loss = loss_N.sum() / BATCH if mistake.divides_by_batch else loss_N.mean()
            loss.backward()
            optimizer.step()
            of_rank[0].extend(loss_N[:n_rank_0].flatten().tolist())
            of_rank[1].extend(loss_N[n_rank_0:].flatten().tolist())
        losses.append((_mean(of_rank[0] + of_rank[1]), _mean(of_rank[0]), _mean(of_rank[1])))
    return Reference(_in_one_row(network.state_dict()), losses)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _in_one_row(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.detach().double().flatten() for value in weights.values()])


def _read_model(file: Path, begin: Path) -> Tensor:
    """Return the weights that the script has saved, in one row. Their names must be those of the file ``begin``."""
    if not file.exists():
        hint = "After the last epoch rank 0 writes the network's state_dict() as model.pt into FOLDER."
        raise Wrong("model.pt in FOLDER", "no such file", hint)
    try:
        state = torch.load(file, weights_only=True)
    except Exception as error:  # torch.load names no common base of its errors
        hint = "torch.save(network.state_dict(), …)"
        raise Wrong("a state_dict in model.pt", guard.last_words(error), hint) from None
    names = list(torch.load(begin, weights_only=True))
    if not isinstance(state, dict):
        raise Wrong(f"weights named {names[0]}, …", type(state).__name__)
    if list(state) != names:
        hint = "Names that begin with module. are those of DDP's wrapper: save what is inside it."
        got = list(state)[:1]
        raise Wrong(f"weights named {names[0]}, …", got, hint if "module." in str(got) else "")
    return _in_one_row(state)


def _check_success(run: Run, hint: str = "") -> None:
    """The exit status of torchrun must be 0."""
    if run.statuses != [0]:
        raise Wrong("exit status 0", f"{run.statuses[0]}: {run.last_error}", hint)


def _comes_to_its_end(script: Script) -> None:
    """torchrun starts it on two ranks, and it comes to its end"""
    run = script.undisturbed
    if run.hangs:
        raise Wrong("both ranks end", f"not within {PATIENCE_S:g} s", "Do both ranks call the same collectives?")
    both_write = "Both ranks write into one file, and rename it: if rank == 0." if run.files_of_both_ranks else ""
    _check_success(run, both_write)
    if not all(run.updates.values()):
        hint = "Each rank makes a Network and trains it on Samples, both imported from samples.py."
        raise Wrong("training passes on both ranks", f"{run.n_updates[0]} and {run.n_updates[1]}", hint)
    for rank, group_exists in run.group_at_end.items():
        if group_exists:
            hint = "Leave in order: dist.destroy_process_group() is each rank's last call."
            raise Wrong("no process group at the end", f"still there on rank {rank}", hint)


def _reads_each_sample_once(script: Script) -> None:
    """In an epoch the ranks read each sample once, in another order in the next"""
    run = script.undisturbed
    _check_counts(run)
    orders = []
    for epoch in range(N_EPOCHS):
        order: list[int] = []
        for number in range(epoch * N_UPDATES, (epoch + 1) * N_UPDATES):
            order += run.batch(number)
        if sorted(order) != list(range(N_SAMPLES)):
            n_twice = len(order) - len(set(order))
            hint = "Some samples are read twice, others never: all ranks must cut one common order."
            raise Wrong(f"each of {N_SAMPLES} samples once in epoch {epoch}", f"{n_twice} twice", hint)
        orders.append(order)
    if orders[0] == orders[1]:
        hint = "Each epoch has the order of the first one: tell the sampler, sampler.set_epoch(epoch)."
        raise Wrong("another order in the second epoch", "the same order", hint)
    if orders[0] == sorted(orders[0]):
        raise Wrong("a random order", "0, 1, 2, …", "Shuffle, from a seed that all ranks share.")


def _check_counts(run: Run) -> None:
    """The ranks must share the samples of an epoch and of an update, and make all updates."""
    n_samples = [sum(len(update.samples) for update in run.updates[rank]) for rank in (0, 1)]
    if n_samples[0] == N_EPOCHS * N_SAMPLES:
        hint = "Every rank reads everything. A DistributedSampler gives each rank its own part."
        raise Wrong(f"{N_SAMPLES // 2} samples of each rank an epoch", f"{N_SAMPLES}", hint)
    largest = max(len(update.samples) for update in run.updates[0])
    if largest != BATCH // 2:
        hint = "--batch counts the samples of all ranks in one update: each takes its part of them."
        raise Wrong(f"{BATCH // 2} samples of each rank in an update", largest, hint)
    if sum(n_samples) < N_EPOCHS * N_SAMPLES:
        hint = f"{N_SAMPLES} samples are no multiple of {BATCH}: the last batch of an epoch is smaller. Do not drop it."
        raise Wrong(f"{N_EPOCHS * N_SAMPLES} samples in {N_EPOCHS} epochs", sum(n_samples), hint)
    if run.n_updates != [_N_ALL_UPDATES, _N_ALL_UPDATES]:
        hint = f"{N_UPDATES} an epoch, --epochs times: one training pass of each rank an update."
        raise Wrong(f"{_N_ALL_UPDATES} updates on each rank", f"{run.n_updates[0]} and {run.n_updates[1]}", hint)


def _is_mixed(script: Script) -> None:
    """Outputs are bfloat16, weights float32"""
    output_dtype, weights_dtype = script.undisturbed.updates[0][0].dtypes
    if weights_dtype != "torch.float32":
        hint = "Small updates vanish in 16 bits. Keep the weights in float32; autocast rounds copies of them."
        raise Wrong("weights in torch.float32", weights_dtype, hint)
    if output_dtype != "torch.bfloat16":
        hint = "Forward pass and loss stand inside torch.autocast(device.type, torch.bfloat16); CPUs can do it, too."
        raise Wrong("outputs in torch.bfloat16", output_dtype, hint)


def _trains_as_one(script: Script) -> None:
    """Weights are those of one process with the same global batch"""
    run = script.undisturbed
    got_N = _read_model(script.folder / "undisturbed" / "model.pt", script.begin)
    begin_N = _in_one_row(torch.load(script.begin, weights_only=True))
    begin_of_rank_1_N = _in_one_row(torch.load(script.begin.with_name("begin-1.pt"), weights_only=True))
    if not torch.equal(begin_N, begin_of_rank_1_N):
        hint = "Each rank begins with weights of its own. DistributedDataParallel sends rank 0's to all."
        raise Wrong("the same weights on both ranks before the first update", "different ones", hint)
    expected_N = _train_in_one_process(run, script.begin).weights_N
    relative_error = float((got_N - expected_N).norm() / (expected_N - begin_N).norm())
    if relative_error <= _TOLERANCE:
        return
    probe_after_epoch = run.updates[0][N_UPDATES].probe  # the weights of some mistakes diverge in later epochs
    for mistake in _MISTAKES:
        wrong_probe = probe(_train_in_one_process(run, script.begin, mistake, n_epochs=1).weights_N)
        if math.dist(wrong_probe, probe_after_epoch) <= _TOLERANCE * math.dist(wrong_probe, probe(begin_N)):
            raise Wrong("the weights of one process", "those of a known mistake", mistake.hint)
    expected = f"the weights of one process, within {_TOLERANCE:.0%} of their change"
    hint = f"Loss: F.mse_loss. Optimizer: torch.optim.SGD, momentum 0.9, rate --rate × --batch / {_BASE}, constant."
    raise Wrong(expected, f"an error of {relative_error:.0%}", hint)


def _prints(script: Script) -> None:
    """Rank 0 prints the mean loss and the throughput of all ranks, epoch by epoch"""
    run = script.undisturbed
    lines = _LINE.findall(run.out)
    epochs = [epoch for epoch, *_ in lines]
    if epochs != [str(epoch) for epoch in range(N_EPOCHS)]:
        n_lines = len(re.findall(r"epoch \d+: loss", run.out))
        hint = "One rank prints for all." if n_lines == 2 * N_EPOCHS else _LIKE_THIS
        raise Wrong(f"{N_EPOCHS} lines, one an epoch", f"{len(lines)} such lines", hint)
    losses = _train_in_one_process(run, script.begin).losses
    for epoch, (_, loss, n_samples, took_s, rate) in enumerate(lines):
        try:
            _check_throughput(run, epoch, int(n_samples), took_s, float(rate))
            _check_loss(epoch, float(loss), losses[epoch])
        except ValueError:
            raise Wrong("numbers", f"{loss} {n_samples} {took_s} {rate}", _LIKE_THIS) from None


def _check_throughput(run: Run, epoch: int, n_samples: int, took_s_text: str, rate: float) -> None:
    """The printed seconds must contain all updates of the epoch, and the rate must be that of all ranks.

    Args:
        run: The run.
        epoch: The number of the epoch.
        n_samples: The printed number of samples.
        took_s_text: The printed seconds, whose decimals give their rounding.
        rate: The printed samples per second.
    """
    if n_samples != N_SAMPLES:
        hint = "The throughput is that of all ranks: sum their samples."
        raise Wrong(f"{N_SAMPLES} samples", f"{n_samples} samples", hint)
    took_s = float(took_s_text)
    n_decimals = len(took_s_text.partition(".")[2])
    rounding_s = 0.5 * 0.1**n_decimals
    # Only rank 0, which prints: rank 1 may begin its epoch while rank 0 still writes a checkpoint.
    times_s = [update.time_s for update in run.updates[0][epoch * N_UPDATES : (epoch + 1) * N_UPDATES]]
    span_s = max(times_s) - min(times_s)
    if not span_s <= took_s + rounding_s <= run.took_s:
        hint = "Read the clock before an epoch's first batch and after its last; print four decimals."
        raise Wrong(f"{span_s:.4f} s or more in epoch {epoch}", f"{took_s_text} s", hint)
    slowest = n_samples / (took_s + rounding_s)
    fastest = n_samples / max(took_s - rounding_s, 1e-9)
    if not 0.99 * slowest <= rate <= 1.01 * fastest:
        expected = f"{n_samples / took_s:.1f} samples/s in epoch {epoch}"
        raise Wrong(expected, f"{rate:g}", "All ranks' samples over seconds.")


def _check_loss(epoch: int, loss: float, expected_losses: tuple[float, float, float]) -> None:
    """The printed loss must be the mean over the samples of both ranks."""
    expected, *of_ranks = expected_losses
    if math.isclose(loss, expected, rel_tol=0.01):
        return
    hint = "It is the mean over all samples of the epoch, of both ranks."
    of_one_rank = [*of_ranks, *(of_rank / 2 for of_rank in of_ranks)]
    if any(math.isclose(loss, value, rel_tol=0.01) for value in of_one_rank):
        hint = "That is the loss of one rank's samples alone: sum over the ranks, dist.all_reduce."
    raise Wrong(f"loss {expected:.4f} in epoch {epoch}", f"{loss:.4f}", hint)


def _one_rank_writes(script: Script) -> None:
    """No file is written by two ranks"""
    files = script.undisturbed.files_of_both_ranks
    if files:
        raise Wrong("a file of rank 0's alone", f"{Path(min(files)).name} is written by both", _BOTH_WRITE)


def _asks_slurm(script: Script) -> None:
    """capstone.sbatch asks for a time limit, and for a warning before it"""
    text = script.job.read_text(encoding="utf-8") if script.job.exists() else _BLANK
    if _BLANK in text:
        hint = "What you type in a terminal, with srun before it and what Slurm needs above."
        raise Wrong("a job script, capstone.sbatch", "the blank", hint)
    options = "\n".join(re.findall(r"^#SBATCH\s+(.*)", text, re.MULTILINE))
    if not re.search(r"(^|\s)(-t\s*\d|--time[\s=])", options):
        hint = "#SBATCH --time=…: without it a site refuses the job, or lets it wait for long."
        raise Wrong("a time limit in the job script", "none", hint)
    if not re.search(r"(^|\s)--signal\b", options):
        hint = "#SBATCH --signal=TERM@120: else the job's first news of its end is the end."
        raise Wrong("a warning in the job script", "none", hint)


def _check_continues(script: Script, run: Run, after: int, hint: str = "") -> None:
    """This start must continue after so many updates with the samples, weights and momentum of the undisturbed run.

    Args:
        script: The learner's script.
        run: The start.
        after: The number of updates.
        hint: The hint if it continues elsewhere.
    """
    if not all(run.updates.values()):
        if run.hangs:
            raise Wrong("it goes on", "it hangs before the first update", hint or "Do all ranks read the checkpoint?")
        raise Wrong(f"it goes on after {after} updates", f"{run.statuses}: {run.last_error}", hint)
    undisturbed = script.undisturbed
    first_batch = run.batch(0)
    positions = [n for n in range(_N_ALL_UPDATES) if undisturbed.batch(n) == first_batch]
    if not positions:
        raise Wrong(f"it goes on with update {after + 1}", "another batch", _hint_for_other_batch(undisturbed, run))
    if positions[0] != after:
        hint = hint or _hint_for_position(positions[0], after)
        raise Wrong(f"it goes on with update {after + 1}", f"update {positions[0] + 1}", hint)
    _check_weights(undisturbed, run, after)


def _hint_for_position(position: int, after: int) -> str:
    """Return the hint for a start that continues after ``position`` instead of ``after`` updates."""
    if position == 0:
        return "It began anew: no checkpoint was written, or none was looked for at the start."
    if position == after // N_UPDATES * N_UPDATES:
        return "It begins the epoch anew, so samples come twice: skip the batches that were done."
    return "Which checkpoint is the newest, and how many updates had been made then?"


def _hint_for_other_batch(undisturbed: Run, run: Run) -> str:
    """Return the hint for a first batch that the undisturbed run does not have."""
    positions = [_position(undisturbed.updates[rank], run.updates[rank][0]) for rank in (0, 1)]
    if None not in positions and positions[0] != positions[1]:
        return "The ranks go on at different places: each of them reads the checkpoint."
    return "After a restart the epoch has other samples: its order must follow from the epoch's number alone."


def _position(updates: list[Update], update: Update) -> int | None:
    """Return the number of the update with the same samples on a rank, or None."""
    samples = [candidate.samples for candidate in updates]
    return samples.index(update.samples) if update.samples in samples else None


def _check_weights(undisturbed: Run, run: Run, after: int) -> None:
    """The weights before each update must be those of the undisturbed run, on both ranks."""
    begin_probe = undisturbed.updates[0][0].probe
    for number in range(min(run.n_updates)):
        expected_probe = undisturbed.updates[0][after + number].probe
        tolerance = 1e-3 * math.dist(expected_probe, begin_probe)
        for rank, updates in run.updates.items():
            if math.dist(updates[number].probe, expected_probe) <= tolerance:
                continue
            hint = "The weights are not those of the checkpoint, or not on every rank: load_state_dict."
            if number > 0:
                hint = "The weights are, but the optimizer's momentum is not: save and load its state_dict, too."
            raise Wrong(f"the weights before update {after + number + 1}", f"others on rank {rank}", hint)


def _check_stops(run: Run, training_pass: int, signal_name: str) -> None:
    """This start must end in order soon after the signal that came in this training pass."""
    n_updates = run.n_updates[0]
    if run.hangs:
        raise Wrong("all ranks end", f"after {n_updates} and {run.n_updates[1]} updates they wait", _AGREE)
    if run.group_at_end != {0: False, 1: False}:
        raise Wrong("both ranks come to an end in order", run.last_error, _hint_for_disorder(run, signal_name))
    if run.saves and max(n_before for _, _, n_before in run.saves) < n_updates:
        hint = "A warned script saves before it leaves: what was done since the epoch began is lost."
        raise Wrong(f"a checkpoint after {n_updates} updates", "none", hint)
    if n_updates >= _N_ALL_UPDATES or n_updates > training_pass + 1:
        hint = "Until an epoch's end it may take longer than the warning leaves: look at the note after each update."
        raise Wrong(f"it stops after {signal_name}", f"{n_updates - training_pass} more updates", hint)


def _hint_for_disorder(run: Run, signal_name: str) -> str:
    """Return the hint for a rank that did not come to the end of the script after a signal."""
    if "DataLoader worker" in run.last_error:
        return f"The signal goes to a rank's DataLoader workers, too: worker_init_fn lets them ignore {signal_name}."
    if any(signal_name not in handled for handled in run.handled_signals.values()):
        return (
            f"{signal_name} ended a rank at once. Let signal.signal({signal_name}, …) take a note, "
            "before training begins."
        )
    if re.search(r"gloo|[Cc]onnection|[Tt]imed out", run.last_error):
        return _AGREE
    return ""


def _a_warning_stops_all(script: Script) -> None:
    """SIGUSR1 reaches one rank: all stop after the same update"""
    run = script.warned
    _check_stops(run, N_UPDATES + 2, "SIGUSR1")
    if any(run.statuses):
        raise Wrong("exit status 0 of both ranks", str(run.statuses), "A warned script ends as at a good end.")


def _goes_on_after_a_warning(script: Script) -> None:
    """Started again it goes on with the next update, until torchrun hands on SIGTERM"""
    _check_continues(script, script.terminated, script.warned.n_updates[0])
    _check_stops(script.terminated, script.pass_of_sigterm, "SIGTERM")


def _survives_a_kill(script: Script) -> None:
    """SIGKILL ends one rank: the other ends, and the next start goes on from the last checkpoint"""
    n_done = script.warned.n_updates[0] + script.terminated.n_updates[0]
    _check_killed_rank(script, n_done)
    _check_kill_in_writing(script, n_done)
    run = script("killed")
    hint = "A kill in the midst of writing must leave the one before it whole: write to another name, then rename."
    _check_continues(script, run, n_done, hint)
    _check_success(run)
    got_N = _read_model(script.folder / "killed" / "model.pt", script.begin)
    expected_N = _read_model(script.folder / "undisturbed" / "model.pt", script.begin)
    relative_error = float((got_N - expected_N).norm() / expected_N.norm())
    if relative_error > 1e-5:
        got = f"others, with a relative error of {relative_error:.1e}"
        raise Wrong("the weights of the run that was left alone", got, "What was forgotten?")


def _check_killed_rank(script: Script, n_done: int) -> None:
    """If SIGKILL ends rank 1, rank 0 must end with an error."""
    run = script("killed", Fault(1, 2, "SIGKILL"), torchrun=False)
    _check_continues(script, run, n_done)
    if run.hangs:
        hint = "Rank 0 waits for a dead rank. Let errors of collectives end the script: catch none of them."
        raise Wrong("rank 0 ends, too", "it waits", hint)
    if run.statuses == [0]:
        raise Wrong("rank 0 ends with an error", "exit status 0", _HIDDEN_ERROR)


def _check_kill_in_writing(script: Script, n_done: int) -> None:
    """The rank that writes the next checkpoint dies while it writes, and this must be at the end of the epoch."""
    run = script("killed", Fault(-1, 2, "writing"), torchrun=False)
    _check_continues(script, run, n_done)
    written_after = n_done + run.n_updates[0]
    expected_after = math.ceil((n_done + 1) / N_UPDATES) * N_UPDATES
    if -signal.SIGXFSZ not in run.statuses or written_after != expected_after:
        hint = "At the end of each epoch rank 0 writes a checkpoint: not every stop comes with a warning."
        raise Wrong(f"a checkpoint after update {expected_after}", f"none until update {written_after}", hint)
    if run.hangs:
        raise Wrong("rank 1 ends, too", "it waits for a dead rank", "Let errors of collectives end the script.")


def _gives_up_waiting(script: Script) -> None:
    """A rank no longer answers: the other ends after --timeout seconds"""
    run = script("stopped", Fault(1, 2, "SIGSTOP"), torchrun=False, timeout_s=_TIMEOUT_S)
    if run.hangs:
        hint = "By default a rank waits half an hour. init_process_group(…, timeout=timedelta(seconds=…))"
        raise Wrong(f"an error after {_TIMEOUT_S:g} s", f"it still waits after {run.took_s:.0f} s", hint)
    if run.statuses == [0]:
        raise Wrong("rank 0 ends with an error", "exit status 0", _HIDDEN_ERROR)


def _runs_as_a_job(script: Script) -> None:
    """capstone.sbatch runs it as a Slurm job"""
    cluster = pocket.own("capstone", nodes=1)
    if cluster is None:
        raise NotTried(f"no Slurm here; {pocket.INSTALL}")
    try:
        state, run = script.submit("job", cluster)
    finally:
        pocket.down(cluster.name)
    if state != "COMPLETED":
        hint = ""
        if state == "FAILED":
            hint = 'srun torchrun … capstone.py "$@": the job\'s arguments are those of the script.'
        raise Wrong("the job ends as COMPLETED", f"{state or 'unknown'}: {run.last_error}", hint)
    samples: list[int] = []
    for update in run.updates[0] + run.updates[1]:
        samples += update.samples
    if sorted(samples) != sorted([*range(N_SAMPLES)] * N_JOB_EPOCHS):
        hint = '--nproc-per-node 2, and the job\'s arguments handed on: "$@".'
        got = f"{run.n_updates[0]} and {run.n_updates[1]} updates"
        raise Wrong(f"{N_JOB_EPOCHS} epochs on two ranks", got, hint)


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
            return super().examine(Script(file, Path(folder), PATIENCE_S))


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
