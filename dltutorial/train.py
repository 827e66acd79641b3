"""Train the course's weather model, in one process or on many ranks.

    python -m dltutorial.train --preset smoke
    torchrun --nproc-per-node 2 -m dltutorial.train --preset smoke
    sbatch -N 4 slurm/train.sbatch --preset cluster --shard full

The program combines methods that chapters of the course explain:

    the training loop                                                             chapter 01
    data parallelism with DDP, which averages the gradients of all ranks          chapter 09
    checkpoints, and signals that stop a run                                      chapter 10
    data parallelism with ``fully_shard``, where each rank has a shard            chapter 17
    tensor parallelism with DTensors, where each layer is split over some ranks   chapter 18

The other files of the program are

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
from torch.profiler import record_function
from torch.utils.data import default_collate

from dltutorial import config, node
from dltutorial.checkpoint import load_checkpoint, save_checkpoint, save_weights
from dltutorial.data import weather
from dltutorial.data.loaders import SnapshotPairs, endless_batches
from dltutorial.data.store import open_split
from dltutorial.distributed import (
    ThisRank,
    barrier,
    bf16_context,
    broadcast_from_rank_0,
    clip_gradients,
    exit_with_rank_0_last,
    gradient_sync,
    join_process_group,
    parallelize,
)
from dltutorial.models.vit import ViT
from dltutorial.one_line_errors import run_command
from dltutorial.optim.schedules import Schedule, cosine, warm_up
from dltutorial.ranks import RankInfo
from dltutorial.record.run_log import RunLog, create_run
from dltutorial.stop_signal import StopSignal
from dltutorial.train_options import check_options, read_options

Batches = Iterator[tuple[Tensor, Tensor]]

# Reading a loss makes the CPU wait for the GPU. Therefore the program reads the losses, and looks for a stop signal,
# only after so many steps, and at each checkpoint and validation. These steps, a checkpoint and a validation must fit
# into the time between Slurm's signal and the time limit, which is 120 s in slurm/train.sbatch.
LOG_EVERY = 10
N_VALIDATIONS = 3  # of a run
VALIDATION_BATCH_PER_RANK = 16
# The settings of AdamW are those of the pre-training of masked autoencoders, which are vision transformers, too
# (https://github.com/facebookresearch/mae/blob/main/main_pretrain.py). 1.0 is a usual limit of the gradients' norm.
WEIGHT_DECAY = 0.05
BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
NOT_DECAYED = ("embed.", "position_")  # the beginnings of the names of parameters without weight decay
# The exit status of a run that a signal has stopped, after it saved a checkpoint. With srun a job script can see it,
# and resume the run. It is EX_TEMPFAIL, "try again later", of the Unix header sysexits.h.
EXIT_RESUMABLE = 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until the last step, or until a stop signal.

    Args:
        arguments: The options. The default is the command line of this process.

    Returns:
        The exit status, 0 or ``EXIT_RESUMABLE``, if there is one rank. With several ranks this function does not
        return, because it ends the process. Then rank 0 ends with this status.

    Raises:
        CourseError: An option is wrong, the data or a checkpoint cannot be used, or the loss became NaN or infinite.
    """
    node.refuse_on_login("training", "send it to Slurm: sbatch -N 1 slurm/train.sbatch, with the same options")
    options = read_options(arguments)
    check_options(options, RankInfo.from_env().world_size)
    this_rank = join_process_group(options)
    status = train(options, this_rank)
    if this_rank.info.world_size > 1:
        exit_with_rank_0_last(this_rank, status)  # the process ends here
    return status


def train(options: argparse.Namespace, this_rank: ThisRank) -> int:
    """Open the data, build and parallelize the model, load the newest checkpoint, and train.

    The training lasts until the last step, or until a signal stops it. When this function returns, the processes that
    load data have ended, too.

    Returns:
        0 if the run is complete, or ``EXIT_RESUMABLE`` if a signal has stopped it.
    """
    train_pairs, valid_pairs = open_data(options, this_rank)
    run = open_run(options, this_rank)
    if broadcast_from_rank_0((run / "weights.pt").exists()):  # a run to resume can be complete
        if this_rank.rank == 0:
            print(f"{run} is complete")
        return 0
    model = build_model(options, train_pairs, this_rank)
    # `model` owns the parameters; `parallel_model` is `model`, or DDP around it. Make the optimizer after sharding.
    parallel_model = parallelize(model, options, this_rank)
    optimizer = make_optimizer(model, options)
    schedule = make_schedule(options)
    step = load_checkpoint(run, model, optimizer)  # the number of steps that are done
    batches = make_batches(train_pairs, options, this_rank, n_batches_to_skip=step)
    losses: list[Tensor] = []
    stop_now = False
    with StopSignal() as stop_signal, RunLog(run, options, step, is_writer=this_rank.rank == 0) as log:
        while step < options.steps and not stop_now:
            set_learning_rate(optimizer, options.learning_rate * schedule(step))
            losses.append(training_step(parallel_model, optimizer, batches, options, this_rank))
            step += 1
            checkpoint_due = is_due(step, options.checkpoint_every)
            validation_due = is_validation_due(step, options.steps)
            if checkpoint_due or validation_due or is_due(step, LOG_EVERY):
                losses_N, stop_now = average_losses_and_stop_flag(losses, stop_signal.received, this_rank)
                losses = []
                log.write_losses(step, losses_N)
                if checkpoint_due or stop_now:
                    save_checkpoint(run, step, model, optimizer)
                if validation_due:
                    log.write_score(step, validate(parallel_model, valid_pairs, options, this_rank))
                log.restart_clock()  # validation and checkpoints do not count as training time
        if step < options.steps:
            log.say(f"stopped by a signal after step {step}; continue with --resume {run}")
            return EXIT_RESUMABLE
        save_weights(run, model)
    return 0


def is_due(step: int, every: int) -> bool:
    """Return True if ``step`` is a multiple of ``every``. If ``every`` is 0, return False."""
    return every > 0 and step % every == 0


def is_validation_due(step: int, n_steps: int) -> bool:
    """Return True after the last step, and ``N_VALIDATIONS`` times in a run at equal distances."""
    return step == n_steps or is_due(step, math.ceil(n_steps / N_VALIDATIONS))


# The run


def open_run(options: argparse.Namespace, this_rank: ThisRank) -> Path:
    """Return the folder of the run: the one to resume, or a new one that rank 0 makes."""
    if options.resume:
        return Path(options.resume)
    folder = None
    if this_rank.rank == 0:
        folder = create_run(options)
    return broadcast_from_rank_0(folder)


def average_losses_and_stop_flag(
    losses: list[Tensor], stop_requested: bool, this_rank: ThisRank
) -> tuple[Tensor, bool]:
    """Average the losses over all ranks, and find out whether any rank has received a signal, by one all-reduce.

    A signal can reach the ranks at different steps. If one rank stopped alone, the others would wait for it forever.
    Therefore all ranks stop as soon as one of them has received a signal.

    Returns:
        The average losses, shape (N,), in CPU memory, and whether all ranks stop now.
    """
    stop_flag = torch.tensor(float(stop_requested), device=this_rank.device)
    values = torch.stack([*losses, stop_flag])
    if this_rank.info.world_size > 1:
        dist.all_reduce(values)  # the sum over the ranks
        values /= this_rank.info.world_size
    values = values.cpu()
    losses_N, share_of_ranks = values[:-1], values[-1]
    return losses_N, bool(share_of_ranks > 0)


# Data, model, optimizer


def open_data(options: argparse.Namespace, this_rank: ThisRank) -> tuple[SnapshotPairs, SnapshotPairs]:
    """Open the samples for training and for validation. A sample is a pair (state, next state).

    Without ``--data``, rank 0 simulates the data of the preset if they do not exist yet, and the other ranks wait.
    """
    preset = config.PRESETS[options.preset]
    folder = options.data
    if folder is None:
        if this_rank.rank == 0:
            weather.ensure(preset)
        barrier()
        folder = weather.ensure(preset)  # now the data exist, so this returns their folder
    _, height, width = open_split(folder, "train").shape
    # Height and width must be multiples of the patch size, so the rest is cut off. With patches of 8, the 721 rows of
    # ERA5 become 720.
    crop = (height - height % preset.patch, width - width % preset.patch)
    return SnapshotPairs(open_split(folder, "train", crop)), SnapshotPairs(open_split(folder, "valid", crop))


def make_batches(
    pairs: SnapshotPairs, options: argparse.Namespace, this_rank: ThisRank, n_batches_to_skip: int
) -> Batches:
    """Return an endless iterator over (x_BCHW, y_BCHW), this rank's samples of one global batch after another.

    Samples of the simulated planet are shifted along longitude by random numbers of points, because this planet is the
    same at every longitude. A data set of ``--data`` is not shifted. The real Earth has continents, and a shift would
    move them against the position embeddings of the model.

    Args:
        pairs: The samples for training.
        options: The options of the run.
        this_rank: It gives the place in the data-parallel group, whose ranks get different samples. All ranks of a
            tensor-parallel group get the same samples.
        n_batches_to_skip: The number of global batches that a resumed run has already used.
    """
    is_simulated = options.data is None
    return endless_batches(
        pairs,
        options.global_batch_size,
        random_shift=is_simulated,
        num_workers=options.workers,
        pin_memory=this_rank.device.type == "cuda",
        seed=options.seed,
        rank=this_rank.data_parallel_rank,
        world_size=this_rank.data_parallel_size,
        n_batches_to_skip=n_batches_to_skip,
    )


def build_model(options: argparse.Namespace, pairs: SnapshotPairs, this_rank: ThisRank) -> ViT:
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
    # Each GPU has the whole model here, also with --shard full, because ``parallelize`` shards the model later. The
    # weights take 4 bytes per parameter. Therefore this matters from about 15 billion parameters on (60 GB), if a GPU
    # has 80 GB. ``fsdp.py``, a script of chapter 17, creates and shards one block after another instead.
    return model.to(this_rank.device)


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.AdamW:
    """Return AdamW, with weight decay for the parameters that ``is_decayed`` selects."""
    decayed = []
    not_decayed = []
    for name, parameter in model.named_parameters():
        if is_decayed(name, parameter):
            decayed.append(parameter)
        else:
            not_decayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": not_decayed, "weight_decay": 0.0}]
    # By default AdamW updates many tensors by one kernel (foreach). That fails if some tensors are on a mesh and others
    # are not, or if they are on different meshes, as with --tensor.
    foreach = False if options.tensor > 1 else None  # with None, torch chooses
    return torch.optim.AdamW(groups, options.learning_rate, betas=BETAS, foreach=foreach)


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Return True for the weights of linear layers and convolutions, which have at least two dimensions.

    Biases and the scales of norm layers have one dimension. ``NOT_DECAYED`` names the exceptions, which are the patch
    embedding and the positions of the vision transformer.
    """
    return parameter.ndim >= 2 and not name.startswith(NOT_DECAYED)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let the next update use this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def make_schedule(options: argparse.Namespace) -> Schedule:
    """Return a function of the step, the factor of the peak learning rate: a warm-up, then half a cosine to 1%."""
    return warm_up(options.warmup_steps, then=cosine(options.steps - options.warmup_steps, final=0.01))


# One step, and the validation


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    options: argparse.Namespace,
    this_rank: ThisRank,
) -> Tensor:
    """Update the weights once.

    Returns:
        The loss of this rank's samples before the update. It stays on the device, see ``LOG_EVERY``.
    """
    # `record_function` names a part of the step. A profiler shows these names (chapter 02).
    with record_function("load"):
        x_BCHW, y_BCHW = next(batches)
    with record_function("to device"):
        x_BCHW = x_BCHW.to(this_rank.device, non_blocking=True)
        y_BCHW = y_BCHW.to(this_rank.device, non_blocking=True)
    optimizer.zero_grad()
    x_micro_batches = x_BCHW.chunk(options.accumulate)
    y_micro_batches = y_BCHW.chunk(options.accumulate)
    loss_of_batch = torch.zeros((), device=this_rank.device)
    for micro_batch in range(options.accumulate):
        is_last = micro_batch == options.accumulate - 1
        with gradient_sync(model, enabled=is_last):
            with record_function("forward"), bf16_context(model, options, this_rank):
                forecast = model(x_micro_batches[micro_batch])
                loss = F.mse_loss(forecast, y_micro_batches[micro_batch]) / options.accumulate
            with record_function("backward"):
                loss.backward()
        loss_of_batch += loss.detach()
    with record_function("optimizer"):
        clip_gradients(model, max_norm=MAX_GRADIENT_NORM)
        optimizer.step()
    return loss_of_batch


def validation_batches(n_samples: int, this_rank: ThisRank) -> list[range]:
    """Return the indices of this rank's samples for each validation batch. For some ranks, the last batch is empty."""
    all_indices = range(n_samples)
    first_index = VALIDATION_BATCH_PER_RANK * this_rank.data_parallel_rank
    global_batch_size = VALIDATION_BATCH_PER_RANK * this_rank.data_parallel_size
    starts = range(first_index, first_index + n_samples, global_batch_size)
    return [all_indices[start : start + VALIDATION_BATCH_PER_RANK] for start in starts]


@torch.no_grad()
def validate(model: nn.Module, pairs: SnapshotPairs, options: argparse.Namespace, this_rank: ThisRank) -> float:
    """Forecast all validation samples once. The ranks of a data-parallel group share them.

    The model has no dropout, so it does not matter whether it is in training mode. All grid points count equally.

    Returns:
        RMSE(model) / RMSE(persistence). Persistence forecasts no change. Below 1 the model is better than persistence.
    """
    model_mse_sum = torch.zeros((), device=this_rank.device)
    persistence_mse_sum = torch.zeros((), device=this_rank.device)
    for indices in validation_batches(len(pairs), this_rank):
        n_samples = len(indices)
        if n_samples == 0:
            # The forward pass of a sharded model communicates, so every rank must call it. A rank without a sample
            # takes sample 0, and multiplies its errors by 0.
            indices = range(1)
        x_BCHW, y_BCHW = default_collate([pairs[i] for i in indices])
        x_BCHW = x_BCHW.to(this_rank.device)
        y_BCHW = y_BCHW.to(this_rank.device)
        with bf16_context(model, options, this_rank):
            forecast_BCHW = model(x_BCHW).float()
        model_mse_sum += n_samples * F.mse_loss(forecast_BCHW, y_BCHW)
        persistence_mse_sum += n_samples * F.mse_loss(x_BCHW, y_BCHW)
    if this_rank.info.world_size > 1:
        # With --tensor N each sample is counted N times in both sums, so the ratio is right.
        dist.all_reduce(model_mse_sum)
        dist.all_reduce(persistence_mse_sum)
    return (model_mse_sum / persistence_mse_sum).sqrt().item()


if __name__ == "__main__":
    sys.exit(run_command(main))
