"""Checks of the capstone: a training script for several ranks, examined from outside.

The input is the name of the learner's script. It runs on two or three ranks of the CPU (see ``capstone_script``):
undisturbed, with warning signals, killed, with a rank that gives no answer, and as a Slurm job if Slurm is installed.
The cases compare the samples of each update, the printed lines, the written files and the weights with those of one
process that trains on the same samples.

Legend: N samples of one update, or all weights in one row.

Source: https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

import itertools
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
    BATCH_OF_THREE,
    N_EPOCHS,
    N_EPOCHS_OF_THREE,
    N_JOB_EPOCHS,
    N_SAMPLES,
    N_THREE,
    N_UPDATES,
    N_UPDATES_OF_THREE,
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
_BASE = 64  # the batch to which --rate belongs
# bf16 has 8 significant bits: a gradient of 16 samples and the mean of two of 8 differ by up to 2⁻⁸ of their size.
_TOLERANCE = 0.015  # relative to the change of the weights; the mistakes below change them by more than 0.03 of it
_TOLERANCE_OF_THREE = 0.006  # rounding gives up to 0.002 here, and ignored shares give 0.011 or more
_LINE = re.compile(r"^epoch (\d+): loss (\S+), (\d+) samples in (\S+) s, (\S+) samples/s\s*$", re.MULTILINE)
_LIKE_THIS = "Like this: epoch 0: loss 0.123456, 76 samples in 0.1234 s, 616.0 samples/s"
_AGREE = (
    "One rank stopped and the other waits for it. All ranks must stop after the same update. After each update, add "
    "the warnings of all ranks with an all-reduce, as survive.py does (section 9 of chapter 10)."
)
_BOTH_WRITE = "Several ranks write the same file. Only rank 0 writes: if rank == 0."
_HIDDEN_ERROR = "An except hides the error of a collective. Let this error end the script."
_DEAL = (
    "DistributedSampler repeats samples until all ranks have equally many, and batch // world_size is rounded down. "
    "Take batch[rank::world_size] of each batch of one common order, as survive.py does (section 8 of chapter 10)."
)
_RESUME = "How many updates does the newest checkpoint have, and which batch comes after them?"
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
        ignores_shares: Whether the gradient is the mean of the ranks' means, also if their shares are unequal.
    """

    hint: str = ""
    rate_factor: float = 1.0
    only_rank_0: bool = False
    keeps_gradients: bool = False
    divides_by_batch: bool = False
    ignores_shares: bool = False


_NO_MISTAKE = Mistake()
_MISTAKES = (
    Mistake(
        "The gradients are not averaged. Wrap the network in DistributedDataParallel, and call the wrapper.",
        only_rank_0=True,
    ),
    Mistake(
        f"--rate is the rate for a batch of {_BASE}. Multiply it by --batch and divide it by {_BASE}.",
        rate_factor=_BASE / BATCH,
    ),
    Mistake(
        "Each update is twice as large as in one process. Look for a sum of gradients instead of their mean, or for a "
        "rate that is multiplied by the number of ranks.",
        rate_factor=2.0,
    ),
    Mistake(
        "Each update is half as large as in one process. DDP has already divided by the number of ranks.",
        rate_factor=0.5,
    ),
    Mistake("Gradients of earlier updates are added. Call zero_grad() in each update.", keeps_gradients=True),
    Mistake(
        "The last batch of an epoch is smaller. Divide its losses by its own size, not by --batch.",
        divides_by_batch=True,
    ),
)
_MEAN_OF_MEANS = Mistake(
    "The shares of a batch are unequal. Multiply the loss of a rank by world_size * len(x) / len(batch) (section 4 of "
    "chapter 09).",
    ignores_shares=True,
)


@dataclass(frozen=True)
class Reference:
    """The result of one process that trains on the samples of both ranks.

    Attributes:
        weights_N: The weights at the end.
        losses: For each epoch the mean loss of all samples, then of the samples of each rank.
    """

    weights_N: Tensor
    losses: list[list[float]]


def _train_in_one_process(
    run: Run, begin: Path, mistake: Mistake = _NO_MISTAKE, n_epochs: int = N_EPOCHS, batch: int = BATCH
) -> Reference:
    """Train in this process on the samples of all ranks, update by update, correctly or with a known mistake."""
    space: dict[str, Any] = {"__name__": "samples"}
    exec(scripts.written(_NOTEBOOK)["samples.py"], space)
    data = space["Samples"]()
    network = space["Network"]()
    network.load_state_dict(torch.load(begin, weights_only=True))
    rate = RATE * batch / _BASE * mistake.rate_factor
    n_updates = math.ceil(N_SAMPLES / batch)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    losses = []
    for epoch in range(n_epochs):
        losses_of_ranks: list[list[float]] = [[] for _ in run.updates]
        for number in range(epoch * n_updates, (epoch + 1) * n_updates):
            shares = [updates[number].samples for updates in run.updates.values()]
            if mistake.only_rank_0:
                shares = shares[:1]
            samples = list(itertools.chain(*shares))
            with torch.autocast("cpu", torch.bfloat16):
                loss_N = F.mse_loss(network(data.x_N9[samples]), data.y_N1[samples], reduction="none")
            if not mistake.keeps_gradients:
                optimizer.zero_grad()
            loss_of_shares = loss_N.split([len(share) for share in shares])
            loss = loss_N.sum() / batch if mistake.divides_by_batch else loss_N.mean()
            if mistake.ignores_shares:
                loss = torch.stack([loss_of_share.mean() for loss_of_share in loss_of_shares]).mean()
            loss.backward()
            optimizer.step()
            for losses_of_rank, loss_of_share in zip(losses_of_ranks, loss_of_shares, strict=False):
                losses_of_rank.extend(loss_of_share.flatten().tolist())
        all_losses = list(itertools.chain(*losses_of_ranks))
        losses.append([_mean(all_losses), *map(_mean, losses_of_ranks)])
    return Reference(_in_one_row(network.state_dict()), losses)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _in_one_row(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.detach().double().flatten() for value in weights.values()])


def _read_model(file: Path, begin: Path, hint: str = "") -> Tensor:
    """Return the weights that the script has saved, in one row. Their names must be those of the file ``begin``."""
    if not file.exists():
        hint = hint or "After the last epoch, rank 0 writes the state_dict() of the network as model.pt into FOLDER."
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
        hint = "Names that begin with module. belong to the wrapper of DDP. Save network.state_dict()."
        got = list(state)[:1]
        raise Wrong(f"weights named {names[0]}, …", got, hint if "module." in str(got) else "")
    return _in_one_row(state)


def _failure(run: Run, expected: str, hint: str = "") -> Wrong:
    """Return the exception for a start that ended with an error. It has the error and the learner's lines."""
    if "FileExistsError" in run.last_error:
        hint = "All ranks make the folder, and it may exist already: mkdir(parents=True, exist_ok=True)."
    return Wrong(expected, run.last_error, hint, run.trace)


def _check_success(run: Run, hint: str = "") -> None:
    """All exit statuses must be 0."""
    if run.hangs:
        got = f"they still run after {run.took_s:.0f} s"
        raise Wrong("all ranks end", got, "Do all ranks call the same collectives?")
    if any(run.statuses):
        raise _failure(run, "exit status 0", hint)


def _comes_to_its_end(script: Script) -> None:
    """torchrun starts two ranks, and the script comes to its end"""
    run = script.undisturbed
    _check_success(run, _BOTH_WRITE if run.files_of_several_ranks else "")
    if not all(run.updates.values()):
        hint = "Each rank makes a Network and trains it on Samples. Both are imported from samples.py."
        raise Wrong("training passes on both ranks", f"{run.n_updates[0]} and {run.n_updates[1]}", hint)
    for rank, group_exists in run.group_at_end.items():
        if group_exists:
            hint = "The last call of each rank is dist.destroy_process_group()."
            raise Wrong("no process group at the end", f"rank {rank} still has it", hint)


def _reads_each_sample_once(script: Script) -> None:
    """In each epoch, two ranks read each sample once, in a new random order"""
    run = script.undisturbed
    _check_counts(run)
    orders = []
    for epoch in range(N_EPOCHS):
        order: list[int] = []
        for number in range(epoch * N_UPDATES, (epoch + 1) * N_UPDATES):
            order += run.batch(number)
        if sorted(order) != list(range(N_SAMPLES)):
            n_twice = len(order) - len(set(order))
            hint = "Some samples are read twice and others never. All ranks must share one common order."
            raise Wrong(f"each of {N_SAMPLES} samples once in epoch {epoch}", f"{n_twice} samples twice", hint)
        orders.append(order)
    if orders[0] == sorted(orders[0]):
        hint = "Shuffle with a seed that all ranks share, for example torch.randperm with a generator."
        raise Wrong("a random order", "0, 1, 2, …", hint)
    if orders[0] == orders[1]:
        hint = "The order must depend on the epoch: manual_seed(epoch), or sampler.set_epoch(epoch) before the batches."
        raise Wrong("a new order in the second epoch", "the same order", hint)


def _check_counts(run: Run) -> None:
    """The ranks must share the samples of an epoch and of an update, and make all updates."""
    n_samples = [sum(len(update.samples) for update in run.updates[rank]) for rank in (0, 1)]
    if n_samples[0] == N_EPOCHS * N_SAMPLES:
        hint = "Each rank reads all samples. Rank r takes batch[r::world_size] of each batch."
        raise Wrong(f"{N_SAMPLES // 2} samples of each rank in an epoch", f"{N_SAMPLES}", hint)
    largest = max(len(update.samples) for update in run.updates[0])
    if largest != BATCH // 2:
        hint = "--batch counts the samples of all ranks in one update. Each rank takes its share of them."
        raise Wrong(f"{BATCH // 2} samples of each rank in an update", largest, hint)
    if sum(n_samples) < N_EPOCHS * N_SAMPLES:
        hint = f"{BATCH} does not divide {N_SAMPLES}, so the last batch of an epoch is smaller. Do not drop it."
        raise Wrong(f"{N_EPOCHS * N_SAMPLES} samples in {N_EPOCHS} epochs", sum(n_samples), hint)
    if run.n_updates != [_N_ALL_UPDATES, _N_ALL_UPDATES]:
        hint = f"There are --epochs epochs of {N_UPDATES} updates. In each update, each rank makes one training pass."
        raise Wrong(f"{_N_ALL_UPDATES} updates on each rank", f"{run.n_updates[0]} and {run.n_updates[1]}", hint)


def _is_mixed(script: Script) -> None:
    """The outputs are in bfloat16 and the weights in float32"""
    output_dtype, weights_dtype = script.undisturbed.updates[0][0].dtypes
    if weights_dtype != "torch.float32":
        hint = "Keep the weights in float32, because 16 bits lose small updates. Autocast makes rounded copies."
        raise Wrong("weights in torch.float32", weights_dtype, hint)
    if output_dtype != "torch.bfloat16":
        hint = "The forward pass and the loss belong inside torch.autocast(…, torch.bfloat16), also on the CPU."
        raise Wrong("outputs in torch.bfloat16", output_dtype, hint)


def _trains_as_one(script: Script) -> None:
    """Two ranks train the weights of one process with the same global batch"""
    run = script.undisturbed
    got_N = _read_model(script.folder / "undisturbed" / "model.pt", script.begin)
    begin_N = _in_one_row(torch.load(script.begin, weights_only=True))
    begin_of_rank_1_N = _in_one_row(torch.load(script.begin.with_name("begin-1.pt"), weights_only=True))
    if not torch.equal(begin_N, begin_of_rank_1_N):
        hint = "Each rank begins with different weights. DistributedDataParallel sends those of rank 0 to all."
        raise Wrong("the same weights on both ranks before the first update", "different weights", hint)
    expected_N = _train_in_one_process(run, script.begin).weights_N
    relative_error = float((got_N - expected_N).norm() / (expected_N - begin_N).norm())
    if relative_error <= _TOLERANCE:
        return
    probe_after_epoch = run.updates[0][N_UPDATES].probe  # the weights of some mistakes diverge in later epochs
    for mistake in _MISTAKES:
        wrong_probe = probe(_train_in_one_process(run, script.begin, mistake, n_epochs=1).weights_N)
        if math.dist(wrong_probe, probe_after_epoch) <= _TOLERANCE * math.dist(wrong_probe, probe(begin_N)):
            raise Wrong("the weights of one process", "the weights that a known mistake gives", mistake.hint)
    raise _other_weights(relative_error, _TOLERANCE)


def _other_weights(relative_error: float, tolerance: float) -> Wrong:
    """Return the exception for weights that no known mistake gives."""
    got = f"a difference of {relative_error:.1%}" if relative_error < 10 else "weights that diverge"
    hint = f"Use F.mse_loss and torch.optim.SGD with momentum 0.9 and the constant rate --rate * --batch / {_BASE}."
    return Wrong(f"the weights of one process, within {tolerance:.1%} of their change", got, hint)


def _prints(script: Script) -> None:
    """After each epoch, rank 0 prints the mean loss and the throughput of all ranks"""
    run = script.undisturbed
    lines = _LINE.findall(run.out)
    epochs = [epoch for epoch, *_ in lines]
    if epochs != [str(epoch) for epoch in range(N_EPOCHS)]:
        n_lines = len(re.findall(r"epoch \d+: loss", run.out))
        hint = "Only rank 0 prints." if n_lines == 2 * N_EPOCHS else _LIKE_THIS
        raise Wrong(f"{N_EPOCHS} lines, one for each epoch", f"{len(lines)} such lines", hint)
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
        hint = "The line counts the samples of all ranks, so add their numbers."
        raise Wrong(f"{N_SAMPLES} samples", f"{n_samples} samples", hint)
    took_s = float(took_s_text)
    n_decimals = len(took_s_text.partition(".")[2])
    rounding_s = 0.5 * 0.1**n_decimals
    # Only rank 0, which prints: rank 1 may begin its epoch while rank 0 still writes a checkpoint.
    times_s = [update.time_s for update in run.updates[0][epoch * N_UPDATES : (epoch + 1) * N_UPDATES]]
    span_s = max(times_s) - min(times_s)
    if not span_s <= took_s + rounding_s <= run.took_s:
        hint = "Read the clock before the first batch of the epoch and after the last update, and print four decimals."
        raise Wrong(f"{span_s:.4f} s or more in epoch {epoch}", f"{took_s_text} s", hint)
    slowest = n_samples / (took_s + rounding_s)
    fastest = n_samples / max(took_s - rounding_s, 1e-9)
    if not 0.99 * slowest <= rate <= 1.01 * fastest:
        expected = f"{n_samples / took_s:.1f} samples/s in epoch {epoch}"
        raise Wrong(expected, f"{rate:g}", "Divide the samples of all ranks by the seconds.")


def _check_loss(epoch: int, loss: float, expected_losses: list[float]) -> None:
    """The printed loss must be the mean over the samples of both ranks."""
    expected, *of_ranks = expected_losses
    if math.isclose(loss, expected, rel_tol=0.01):
        return
    hint = "The loss is the mean over all samples of the epoch."
    of_one_rank = [*of_ranks, *(of_rank / 2 for of_rank in of_ranks)]
    if any(math.isclose(loss, value, rel_tol=0.01) for value in of_one_rank):
        hint = "This is the loss of one rank's samples alone. Add the sums of all ranks with dist.all_reduce."
    raise Wrong(f"loss {expected:.4f} in epoch {epoch}", f"{loss:.4f}", hint)


def _one_rank_writes(script: Script) -> None:
    """Only rank 0 writes files"""
    files = script.undisturbed.files_of_several_ranks
    if files:
        raise Wrong("files that only rank 0 writes", f"both ranks write {Path(min(files)).name}", _BOTH_WRITE)


def _asks_slurm(script: Script) -> None:
    """capstone.sbatch asks for a time limit and for a warning before it"""
    text = script.job.read_text(encoding="utf-8") if script.job.exists() else _BLANK
    if _BLANK in text:
        hint = "Write the options of Slurm, and below them srun with the command of your terminal."
        raise Wrong("a job script, capstone.sbatch", "the empty cell", hint)
    options = "\n".join(re.findall(r"^#SBATCH\s+(.*)", text, re.MULTILINE))
    if not re.search(r"(^|\s)(-t\s*\d|--time[\s=])", options):
        hint = "Add #SBATCH --time=…. Without it, a site may refuse the job or let it wait for a long time."
        raise Wrong("a time limit in the job script", "none", hint)
    if not re.search(r"(^|\s)--signal\b", options):
        hint = "Add #SBATCH --signal=TERM@120. Without it, Slurm ends the job and the script cannot save first."
        raise Wrong("a warning in the job script", "none", hint)


def _check_deals(run: Run, n_epochs: int) -> None:
    """Three ranks must share batches of 8 samples, and in each epoch they must read each sample once."""
    for number in range(min(run.n_updates)):
        expected = BATCH_OF_THREE
        if (number + 1) % N_UPDATES_OF_THREE == 0:
            expected = N_SAMPLES - BATCH_OF_THREE * (N_UPDATES_OF_THREE - 1)
        if len(run.batch(number)) != expected:
            shares = " + ".join(str(len(updates[number].samples)) for updates in run.updates.values())
            raise Wrong(f"{expected} samples in update {number + 1}, as --batch says", f"{shares} samples", _DEAL)
    for epoch in range(n_epochs):
        updates = range(epoch * N_UPDATES_OF_THREE, (epoch + 1) * N_UPDATES_OF_THREE)
        samples = list(itertools.chain(*map(run.batch, updates)))
        if sorted(samples) != list(range(N_SAMPLES)):
            n_read = len(set(samples))
            raise Wrong(f"each of {N_SAMPLES} samples once in an epoch", f"only {n_read} different samples", _DEAL)


def _shares_are_unequal(script: Script) -> None:
    """Three ranks share each batch unequally, and train the weights of one process"""
    run = script.three
    n_expected = 2 * N_UPDATES_OF_THREE
    if min(run.n_updates) < n_expected:
        if run.hangs:
            got = f"they wait after {', '.join(map(str, run.n_updates))} training passes"
            raise Wrong("two epochs on three ranks", got, "All ranks must make equally many updates. " + _DEAL)
        _check_deals(run, 0)
        raise _failure(run, f"two epochs of {N_UPDATES_OF_THREE} updates on three ranks", _DEAL)
    _check_deals(run, 2)
    _check_weights_of_three(run, script.begin)


def _check_weights_of_three(run: Run, begin: Path) -> None:
    """After the first epoch of three ranks, the weights must be those of one process."""
    got = run.updates[0][N_UPDATES_OF_THREE].probe
    before = run.updates[0][0].probe
    expected = _probe_after_epoch_of_three(run, begin, _NO_MISTAKE)
    relative_error = math.dist(got, expected) / math.dist(expected, before)
    if relative_error <= _TOLERANCE_OF_THREE:
        return
    wrong = _probe_after_epoch_of_three(run, begin, _MEAN_OF_MEANS)
    if math.dist(wrong, got) <= _TOLERANCE_OF_THREE * math.dist(wrong, before):
        raise Wrong("the weights of one process", "the mean of the ranks' means", _MEAN_OF_MEANS.hint)
    raise _other_weights(relative_error, _TOLERANCE_OF_THREE)


def _probe_after_epoch_of_three(run: Run, begin: Path, mistake: Mistake) -> list[float]:
    return probe(_train_in_one_process(run, begin, mistake, n_epochs=1, batch=BATCH_OF_THREE).weights_N)


def _check_continues(run: Run, before: Run, after: int, hint: str = "") -> None:
    """A start must continue after so many updates with the samples, weights and momentum of a run without this stop.

    Args:
        run: The start.
        before: The run without this stop.
        after: The number of updates.
        hint: The hint if it continues elsewhere.
    """
    if not all(run.updates.values()):
        expected = f"the script continues after {after} updates"
        if run.hangs:
            raise Wrong(expected, "it waits before the first update", hint or "Do all ranks read the checkpoint?")
        raise _failure(run, expected, hint)
    first_batch = run.batch(0)
    positions = [n for n in range(before.n_updates[0]) if before.batch(n) == first_batch]
    if not positions:
        hint = _hint_for_other_batch(before, run)
        raise Wrong(f"the script continues with update {after + 1}", "another batch", hint)
    if positions[0] != after:
        hint = hint or _hint_for_position(positions[0], after)
        raise Wrong(f"the script continues with update {after + 1}", f"update {positions[0] + 1}", hint)
    _check_weights(before, run, after)


def _hint_for_position(position: int, after: int) -> str:
    """Return the hint for a start that continues after ``position`` instead of ``after`` updates."""
    if position == 0:
        return "The training began again. Either no checkpoint was written, or the start did not look for one."
    if position == after // N_UPDATES * N_UPDATES:
        return (
            "The epoch began again, so samples are read twice. Skip the batches that are done, as remaining_batches "
            "does (section 8 of chapter 10)."
        )
    return _RESUME


def _hint_for_other_batch(before: Run, run: Run) -> str:
    """Return the hint for a first batch that the run without the stop does not have."""
    positions = [_position(before.updates[rank], run.updates[rank][0]) for rank in run.updates]
    if None not in positions and len(set(positions)) > 1:
        return "The ranks continue at different updates. Each rank must read the checkpoint."
    return "After a restart, the epoch has a different order. The order must depend on the number of the epoch only."


def _position(updates: list[Update], update: Update) -> int | None:
    """Return the number of the update with the same samples on a rank, or None."""
    samples = [candidate.samples for candidate in updates]
    return samples.index(update.samples) if update.samples in samples else None


def _check_weights(before: Run, run: Run, after: int) -> None:
    """The weights before each update must be those of the run without the stop, on all ranks."""
    begin_probe = before.updates[0][0].probe
    for number in range(min(*run.n_updates, before.n_updates[0] - after)):
        expected_probe = before.updates[0][after + number].probe
        tolerance = 1e-3 * math.dist(expected_probe, begin_probe)
        for rank, updates in run.updates.items():
            if math.dist(updates[number].probe, expected_probe) <= tolerance:
                continue
            hint = "The weights are not those of the checkpoint, or not on all ranks. Call load_state_dict."
            if number > 0:
                hint = "The weights were loaded, but not the momentum. Save and load optimizer.state_dict(), too."
            raise Wrong(f"the weights before update {after + number + 1}", f"different weights on rank {rank}", hint)


def _check_stops(run: Run, training_pass: int, signal_name: str) -> None:
    """This start must end in order soon after the signal that came in this training pass."""
    n_updates = run.n_updates[0]
    if run.hangs:
        raise Wrong("all ranks end", f"after {n_updates} and {run.n_updates[1]} updates they wait", _AGREE)
    if run.group_at_end != dict.fromkeys(run.updates, False):
        raise _failure(run, "all ranks come to the end of the script", _hint_for_disorder(run, signal_name))
    if run.saves and max(n_before for _, _, n_before in run.saves) < n_updates:
        hint = "After a warning, save before the script ends. Otherwise the updates since the last checkpoint are lost."
        raise Wrong(f"a checkpoint after {n_updates} updates", "none", hint)
    if n_updates > training_pass + 1:
        hint = (
            "The end of the epoch may come too late, because Slurm waits only a short time. Ask after each update "
            "whether a warning has come."
        )
        raise Wrong(f"the script stops after {signal_name}", f"{n_updates - training_pass} more updates", hint)


def _hint_for_disorder(run: Run, signal_name: str) -> str:
    """Return the hint for a rank that did not come to the end of the script after a signal."""
    if "DataLoader worker" in run.last_error:
        return (
            "The signal also reached the DataLoader workers of a rank and ended one. Use no workers, or let "
            f"worker_init_fn ignore {signal_name}."
        )
    if any(signal_name not in handled for handled in run.handled_signals.values()):
        return (
            f"{signal_name} ended a rank at once. Before the training begins, call note_warnings of ranks.py (section "
            f"2 of chapter 10). It handles {signal_name}."
        )
    if re.search(r"gloo|[Cc]onnection|[Tt]imed out", run.last_error):
        return _AGREE
    return ""


def _a_warning_stops_all(script: Script) -> None:
    """SIGUSR1 reaches one rank, and all ranks stop after the same update"""
    run = script.warned
    _check_stops(run, N_UPDATES + 2, "SIGUSR1")
    if any(run.statuses):
        statuses = " and ".join(map(str, run.statuses))
        raise Wrong("exit status 0 of both ranks", statuses, "A warned script ends with exit status 0.", run.trace)


def _continues_after_a_warning(script: Script) -> None:
    """The next start continues with the next update, until SIGTERM comes in the last update of an epoch"""
    _check_continues(script.terminated, script.undisturbed, script.warned.n_updates[0])
    _check_stops(script.terminated, script.pass_of_sigterm, "SIGTERM")


def _gives_up_waiting(script: Script) -> None:
    """The next start continues with the next epoch, until a rank gives no answer and the other ends after --timeout"""
    run = script.stopped
    hint = (
        "The last start was warned in the last update of an epoch, so no batch of this epoch is left. Continue with "
        "the next epoch: epoch, n_done = divmod(step, batches_per_epoch), as in sample_order.py (section 8 of chapter "
        "10)."
    )
    if script.n_done % N_UPDATES:  # the script stopped one update after the warning
        hint = ""
    _check_continues(run, script.undisturbed, script.n_done, "" if all(run.updates.values()) else hint)
    if run.hangs:
        hint = "By default, gloo waits 30 minutes. Use init_process_group(…, timeout=timedelta(seconds=…))."
        raise Wrong("an error after --timeout seconds", f"rank 0 still waits after {run.took_s:.0f} s", hint)
    if run.statuses == [0]:
        raise Wrong("rank 0 ends with an error", "exit status 0", _HIDDEN_ERROR)


def _survives_a_kill(script: Script) -> None:
    """A rank is killed while it writes a checkpoint. The other ends with an error, and the next start continues"""
    n_done = script.n_done
    _check_kill_in_writing(script, n_done)
    run = script("killed", Fault(1, _N_ALL_UPDATES - n_done, "SIGUSR1"))
    hint = (
        "The kill destroyed the newest checkpoint. Write to a temporary name and rename the complete file, as "
        "checkpoint.py does (section 7 of chapter 10)."
    )
    _check_continues(run, script.undisturbed, n_done, hint)
    _check_success(run)
    hint = (
        "This start was warned in the very last update. No update is left, so the script must write model.pt as "
        "without a warning."
    )
    _check_final_weights(script, hint)


def _check_kill_in_writing(script: Script, n_done: int) -> None:
    """The rank that writes the next checkpoint dies while it writes, and this must be at the end of the epoch."""
    run = script("killed", Fault(-1, 2, "writing"))
    _check_continues(run, script.undisturbed, n_done)
    written_after = n_done + run.n_updates[0]
    expected_after = math.ceil((n_done + 1) / N_UPDATES) * N_UPDATES
    if -signal.SIGXFSZ not in run.statuses or written_after != expected_after:
        hint = "Rank 0 writes a checkpoint at the end of each epoch, because a kill comes without a warning."
        raise Wrong(f"a checkpoint after update {expected_after}", f"none until update {written_after}", hint)
    _check_others_end(run)


def _check_others_end(run: Run) -> None:
    """If a rank was killed, the other ranks must end with an error."""
    if run.hangs:
        hint = "A rank waits for a rank that is dead. Let the error of a collective end the script."
        raise Wrong("the other ranks end, too", "a rank waits", hint)
    if 0 in run.statuses:
        raise Wrong("the other ranks end with an error", "exit status 0", _HIDDEN_ERROR)


def _check_final_weights(script: Script, hint: str) -> None:
    """The run with all these stops must have the final weights of the undisturbed run."""
    got_N = _read_model(script.folder / "killed" / "model.pt", script.begin, hint)
    expected_N = _read_model(script.folder / "undisturbed" / "model.pt", script.begin)
    relative_error = float((got_N - expected_N).norm() / expected_N.norm())
    if relative_error > 1e-5:
        got = f"different weights, with a relative error of {relative_error:.1e}"
        raise Wrong("the weights of the run that was not disturbed", got, _RESUME)


def _keeps_a_checkpoint(script: Script) -> None:
    """A rank is killed before it renames a new checkpoint, and three ranks continue from the one before"""
    before = script.three
    if -signal.SIGKILL in before.statuses:
        _check_others_end(before)
    run = script("three", n_ranks=N_THREE)
    if not any(before.statuses):  # the script does not rename files, so nothing was killed
        _check_success(run)
        return
    hint = (
        "The kill came before the rename, and the checkpoint before it was gone. Remove old checkpoints only after the "
        "rename, as checkpoint.py does (section 7 of chapter 10)."
    )
    _check_continues(run, before, N_UPDATES_OF_THREE, hint)
    _check_success(run)
    if min(run.n_updates) < (N_EPOCHS_OF_THREE - 1) * N_UPDATES_OF_THREE:
        got = f"{min(run.n_updates)} updates after the kill"
        raise Wrong(f"{N_EPOCHS_OF_THREE} epochs on three ranks", got, _RESUME)
    _check_deals(run, N_EPOCHS_OF_THREE - 1)
    _read_model(script.folder / "three" / "model.pt", script.begin)


def _has_an_end(script: Script) -> None:
    """A start after the last epoch trains no more, and writes model.pt"""
    model = script.folder / "killed" / "model.pt"
    model.unlink(missing_ok=True)
    run = script("killed")
    _check_success(run, "No update is left. The script has nothing to do but the end.")
    if any(run.n_updates):
        hint = "The checkpoint after the last epoch says that no update is left."
        raise Wrong("no training pass", f"{max(run.n_updates)} training passes", hint)
    hint = "A kill can come between the last checkpoint and model.pt. Write model.pt at each end."
    _check_final_weights(script, hint)


def _runs_as_a_job(script: Script) -> None:
    """capstone.sbatch runs it as a Slurm job"""
    cluster = pocket.own("capstone", nodes=1)
    if cluster is None:
        raise NotTried(f"Slurm is not installed. To install it: {pocket.INSTALL}")
    try:
        state, run = script.submit("job", cluster)
    finally:
        pocket.down(cluster.name)
    if state != "COMPLETED":
        hint = ""
        if state == "FAILED":
            hint = 'Pass the arguments of the job script to capstone.py: srun torchrun … capstone.py "$@"'
        raise Wrong("the job ends as COMPLETED", f"{state or 'unknown'}: {run.last_error}", hint, run.trace)
    samples: list[int] = []
    for update in run.updates[0] + run.updates[1]:
        samples += update.samples
    if sorted(samples) != sorted([*range(N_SAMPLES)] * N_JOB_EPOCHS):
        hint = 'Start two ranks with --nproc-per-node 2, and pass the arguments of the job script on with "$@".'
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
            return Outcome("wrong", (), "a script", "the name of a file in this folder", guard.brief(fn))
        text = file.read_text(encoding="utf-8", errors="replace")
        if _BLANK in text:
            return Outcome("not attempted")
        if re.search(r"^\s*(from|import) dltutorial", text, re.MULTILINE):
            hint = "The script must run where only torch is installed. Write the functions that you need yourself."
            return Outcome("wrong", (), "a script of your own", "no import of the course", "import dltutorial", hint)
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
        _shares_are_unequal,
        _a_warning_stops_all,
        _continues_after_a_warning,
        _gives_up_waiting,
        _survives_a_kill,
        _has_an_end,
        _keeps_a_checkpoint,
        _runs_as_a_job,
    ),
    hints=(
        "Begin with survive.py of chapter 10 and its files. Then add one row of the table after the other, and start "
        "the script after each.",
        "Three parts are in chapter 10: save (section 7), the batches that are left (section 8), and note_warnings "
        "with the all-reduce that all ranks use to stop together (section 9).",
        "Start the script in a terminal and disturb it yourself with kill -USR1 and kill -9. Print the number of "
        "updates at each start. Is it the expected one?",
    ),
    code=(
        "epoch, n_done = divmod(step, math.ceil(len(data) / args.batch))",
        "order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))",
        "batches = order.split(args.batch)[n_done:]",
        "shares = [batch[rank::world_size].tolist() for batch in batches]",
        "loader = DataLoader(data, batch_sampler=shares)",
        "warned = torch.tensor(float(len(warnings)))  # after each update",
        "dist.all_reduce(warned)  # now all ranks know whether to stop",
    ),
    deadline_s=600.0,
)
