"""Train the course's weather model, in one process or on many ranks.

    python -m dltutorial.train --preset smoke
    torchrun --nproc-per-node 2 -m dltutorial.train --preset smoke
    sbatch -N 4 slurm/train.sbatch --preset cluster --shard full

The program combines three scripts of the course: ``train.py`` (chapter 01), ``ddp.py`` (chapter 09) and
``checkpoint.py`` (chapter 10). This file has the loop, the data, the optimizer and the step. The other files are

    train_options.py     the options
    distributed.py       how the ranks share the work
    checkpoint.py        how a run is saved and resumed
    stop_signal.py       how a signal stops a run
    record/run_log.py    what is written during a run

Input: a data set in the layout of ``data.store``. The default is the simulated weather of the preset.
Output: a folder ``runs/<name>-<time>``, which ``record/run_log.py`` describes.

Shapes: B samples in the batch of one rank, C channels, H × W grid points (latitude × longitude), N losses.

Source: the tutorials of PyTorch, https://docs.pytorch.org/tutorials/.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import default_collate

from dltutorial import config, node
from dltutorial.checkpoint import load_checkpoint, save_checkpoint, save_weights
from dltutorial.command_line import run_command
from dltutorial.data import weather
from dltutorial.data.loaders import Pairs, endless_batches
from dltutorial.data.store import open_split
from dltutorial.distributed import (
    ThisRank,
    barrier,
    bf16_context,
    clip_gradients,
    distribute,
    end_process,
    from_rank_0,
    gradient_sync,
    join_process_group,
)
from dltutorial.models.vit import ViT
from dltutorial.optim.schedules import Schedule, cosine, warm_up
from dltutorial.profile.ranges import annotate
from dltutorial.ranks import RankInfo
from dltutorial.record.run_log import RunLog, create_run
from dltutorial.stop_signal import StopSignal
from dltutorial.train_options import check_options, read_options

Batches = Iterator[tuple[Tensor, Tensor]]

# Reading a loss makes the CPU wait for the GPU, so the losses of this many steps are read at once. A signal to stop is
# noticed at the same time. Therefore this many steps must take less time than Slurm leaves after its signal.
LOG_EVERY = 10
VALIDATION_BATCH = 16
# The exit status of a run that a signal has stopped, after it saved a checkpoint. A job script can resume such a run.
# It is EX_TEMPFAIL, "try again later", of the Unix header sysexits.h.
EXIT_RESUMABLE = 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until the last step, or until a signal.

    Args:
        arguments: The words after ``dltutorial train``. The default is the command line of this process.

    Returns:
        The exit status, 0 or ``EXIT_RESUMABLE``. If there are several ranks, their processes end here instead.

    Raises:
        CourseError: An option, the data or a checkpoint does not fit, or the loss is not finite any more.
    """
    node.refuse_on_login("training", "send it to Slurm: sbatch -N 1 slurm/train.sbatch, with the same options")
    options = read_options(arguments)
    check_options(options, RankInfo.from_env().world_size)
    this_rank = join_process_group(options)
    train_pairs, valid_pairs = open_data(options, this_rank)
    model = build_model(options, train_pairs, this_rank)
    parallel_model = distribute(model, options, this_rank)
    optimizer = make_optimizer(model, options)
    schedule = make_schedule(options)
    run = open_run(options, this_rank)
    if from_rank_0((run / "weights.pt").exists()):
        if this_rank.rank == 0:
            print(f"{run} is complete")
        return end_process(this_rank, 0)
    step = load_checkpoint(run, model, optimizer)  # the number of steps that are done
    batches = make_batches(train_pairs, options, this_rank, skip=step)
    losses: list[Tensor] = []
    stopping = False
    with StopSignal() as signal, RunLog(run, options, step, is_writer=this_rank.rank == 0) as log:
        while step < options.steps and not stopping:
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * schedule(step)
            losses.append(training_step(parallel_model, optimizer, batches, options, this_rank))
            step += 1
            checkpoint_due = is_due(step, options.checkpoint_every)
            validation_due = step == options.steps or is_due(step, math.ceil(options.steps / 3))
            if checkpoint_due or validation_due or is_due(step, LOG_EVERY):
                losses_N, stopping = average_losses_and_agree(losses, signal.received, this_rank)
                losses = []
                log.write_losses(step, losses_N)
                if checkpoint_due or stopping:
                    save_checkpoint(run, step, model, optimizer)
                if validation_due:
                    log.write_score(step, validate(parallel_model, valid_pairs, options, this_rank))
                log.restart_clock()  # validation and checkpoints do not count as training time
    del batches  # ends the processes that load data
    if step < options.steps:
        log.say(f"stopped by a signal after step {step}; continue with --resume {run}")
        return end_process(this_rank, EXIT_RESUMABLE)
    save_weights(run, model)
    return end_process(this_rank, 0)


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every ``every`` steps happens after this step. 0 means never."""
    return every > 0 and step % every == 0


# The run


def open_run(options: argparse.Namespace, this_rank: ThisRank) -> Path:
    """Return the folder of the run: the one to resume, or a new one that rank 0 makes."""
    if options.resume:
        return Path(options.resume)
    folder = None
    if this_rank.rank == 0:
        folder = create_run(options)
    return from_rank_0(folder)


def average_losses_and_agree(losses: list[Tensor], received: bool, this_rank: ThisRank) -> tuple[Tensor, bool]:
    """Average the losses over all ranks, and agree on whether to stop, in one all-reduce.

    A signal can reach the ranks at different steps. If one rank stopped alone, the others would wait for it forever.
    Therefore all ranks stop as soon as one of them has received a signal.

    Returns:
        The average losses, shape (N,), in CPU memory, and whether all ranks stop now.
    """
    stop_flag = torch.tensor(float(received), device=this_rank.device)
    values = torch.stack([*losses, stop_flag])
    if this_rank.mesh is not None:
        dist.all_reduce(values)
        values /= this_rank.info.world_size
    values = values.cpu()
    return values[:-1], bool(values[-1] > 0)


# Data, model, optimizer


def open_data(options: argparse.Namespace, this_rank: ThisRank) -> tuple[Pairs, Pairs]:
    """Open the pairs (state, next state) for training and for validation.

    Rank 0 simulates the data of the preset first, if they do not exist yet.
    """
    preset = config.PRESETS[options.preset]
    if options.data is None:
        if this_rank.rank == 0:
            weather.ensure(preset)
        barrier()
    folder = options.data or weather.ensure(preset)
    _, height, width = open_split(folder, "train").shape
    # The patches must cover the field. For example, patches of 8 rows cover 720 of the 721 rows of ERA5.
    crop = (height - height % preset.patch, width - width % preset.patch)
    return Pairs(open_split(folder, "train", crop)), Pairs(open_split(folder, "valid", crop))


def make_batches(pairs: Pairs, options: argparse.Namespace, this_rank: ThisRank, skip: int) -> Batches:
    """Return this rank's part of each global batch, x_BCHW and y_BCHW, without an end.

    Args:
        pairs: The samples for training.
        options: The options of the run.
        this_rank: Ranks in different rows of the mesh get different samples.
        skip: The number of global batches that a resumed run has already used.
    """
    return endless_batches(
        pairs,
        options.global_batch_size,
        roll=True,  # shift each sample along longitude by a random number of grid points (data augmentation)
        workers=options.workers,
        pin=this_rank.device.type == "cuda",
        seed=options.seed,
        rank=this_rank.data_index,
        world_size=this_rank.n_data_ranks,
        skip=skip,
    )


def build_model(options: argparse.Namespace, pairs: Pairs, this_rank: ThisRank) -> ViT:
    """Return the preset's vision transformer. The seed gives all ranks the same initial weights."""
    preset = config.PRESETS[options.preset]
    channels, height, width = pairs.split.shape
    torch.manual_seed(options.seed)
    model = ViT(
        channels,
        height,
        width,
        preset.patch,
        preset.dim,
        preset.depth,
        preset.heads,
        checkpoint_blocks=options.checkpoint_activations,
    )
    return model.to(this_rank.device)


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.AdamW:
    """Return AdamW. Its weight decay acts on the matrices of the linear layers only."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    # AdamW can update many tensors by one kernel, but only if all of them are on one mesh. With --tensor some
    # parameters are split and others are not, so they are on different meshes.
    foreach = None
    if options.tensor > 1:
        foreach = False
    return torch.optim.AdamW(groups, options.learning_rate, betas=(0.9, 0.95), foreach=foreach)


def make_schedule(options: argparse.Namespace) -> Schedule:
    """Return the factor of the learning rate for each step: a linear warm-up, then half a cosine to 1%."""
    return warm_up(options.warmup_steps, then=cosine(options.steps - options.warmup_steps, final=0.01))


# One step, and the validation


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    options: argparse.Namespace,
    this_rank: ThisRank,
) -> Tensor:
    """Update the weights once. ``annotate`` names a part of the step for a profiler, as in chapter 02.

    Returns:
        The loss of this rank's samples before the update. It stays on the device, see ``LOG_EVERY``.
    """
    with annotate("load"):
        x_BCHW, y_BCHW = next(batches)
    with annotate("to device"):
        x_BCHW = x_BCHW.to(this_rank.device, non_blocking=True)
        y_BCHW = y_BCHW.to(this_rank.device, non_blocking=True)
    optimizer.zero_grad()
    x_micro_batches = x_BCHW.chunk(options.accumulate)
    y_micro_batches = y_BCHW.chunk(options.accumulate)
    total_loss = torch.zeros((), device=this_rank.device)
    for number in range(options.accumulate):
        is_last = number == options.accumulate - 1
        with gradient_sync(model, enabled=is_last):
            with annotate("forward"), bf16_context(model, options, this_rank):
                forecast_BCHW = model(x_micro_batches[number])
                loss = F.mse_loss(forecast_BCHW, y_micro_batches[number]) / options.accumulate
            with annotate("backward"):
                loss.backward()
        total_loss += loss.detach()
    with annotate("optimizer"):
        clip_gradients(model, max_norm=1.0)
        optimizer.step()
    return total_loss


@torch.no_grad()
def validate(model: nn.Module, pairs: Pairs, options: argparse.Namespace, this_rank: ThisRank) -> float:
    """Forecast all validation pairs once. The rows of the mesh share them.

    The model has no dropout, so it does not matter whether it is in training mode. All grid points count equally.

    Returns:
        RMSE(model) / RMSE(persistence). Persistence forecasts no change, so a value below 1 is better than that.
    """
    n = len(pairs)
    samples_per_round = VALIDATION_BATCH * this_rank.n_data_ranks
    sum_of_squares_2 = torch.zeros(2, device=this_rank.device)  # of the model, and of persistence
    for round_start in range(0, n, samples_per_round):
        first = round_start + VALIDATION_BATCH * this_rank.data_index
        indices = list(range(first, min(first + VALIDATION_BATCH, n)))
        # A forecast may communicate, so each rank must make one. A rank without samples takes pair 0 with weight 0.
        x_BCHW, y_BCHW = default_collate([pairs[i] for i in indices or [0]])
        x_BCHW = x_BCHW.to(this_rank.device)
        y_BCHW = y_BCHW.to(this_rank.device)
        with bf16_context(model, options, this_rank):
            forecast_BCHW = model(x_BCHW).float()
        mse_2 = torch.stack([F.mse_loss(forecast_BCHW, y_BCHW), F.mse_loss(x_BCHW, y_BCHW)])
        sum_of_squares_2 += len(indices) * mse_2
    if this_rank.mesh is not None:
        dist.all_reduce(sum_of_squares_2)  # with --tensor each sample counts several times, in both sums
    return (sum_of_squares_2[0] / sum_of_squares_2[1]).sqrt().item()


if __name__ == "__main__":
    sys.exit(run_command(main))
