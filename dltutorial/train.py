"""Train the course's weather model, in one process or on many ranks.

    python -m dltutorial.train --preset smoke
    torchrun --nproc-per-node 2 -m dltutorial.train --preset smoke
    srun --ntasks 8 python -m dltutorial.train --preset cluster --shard full

The program grows out of three scripts of the course: ``train.py`` (chapter 01), ``ddp.py`` (chapter 09) and
``checkpoint.py`` (chapter 10). Chapter 17 explains ``--shard``, and chapter 18 explains ``--tensor``.

Input: a data set in the layout of ``data.store``. The default is the simulated weather of the preset.
Output: a folder ``runs/<name>-<time>``, see ``record/run_log.py``.

Shapes: B samples in the batch of one rank, C channels, H × W grid points (latitude × longitude).

Sources: the pages on ``torch.distributed``, ``fully_shard``, ``torch.distributed.tensor.parallel`` and
``torch.distributed.checkpoint`` in https://docs.pytorch.org/docs/stable/.
"""

import argparse
import contextlib
import math
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from dltutorial import config, machine, node
from dltutorial.checkpoint import barrier, is_first_rank, load_checkpoint, save_checkpoint, save_weights
from dltutorial.command_line import run_command
from dltutorial.data import store, weather
from dltutorial.data.loaders import Pairs, endless_batches
from dltutorial.errors import CourseError
from dltutorial.launch import process_group
from dltutorial.models.vit import ViT
from dltutorial.optim.schedules import cosine, warm_up
from dltutorial.profile.ranges import annotate
from dltutorial.ranks import RankInfo
from dltutorial.record.run_log import RunLog, create_run
from dltutorial.step import compiling
from dltutorial.train_options import check_options, read_options

LOG_EVERY = 10  # steps between two looks at the losses; each look waits for the device
STOPPED = 75  # exit status "try again later" (EX_TEMPFAIL in sysexits.h): there is a checkpoint to resume from
TENSOR_PLAN = {  # of one block: the first matrix of each pair is split by columns, the second one by rows
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit status: 0 after the last step, 75 after a signal that stopped the run.

    With several ranks it does not return: all ranks leave the process group together and end.

    Args:
        arguments: The words after ``dltutorial train``. The default is the command line of this process.

    Raises:
        CourseError: An option, the data or a checkpoint does not fit, or the loss is not finite any more.
    """
    node.refuse_on_login("training", "send it to Slurm: sbatch --nodes=1 slurm/train.sbatch, with the same options")
    options = read_options(arguments)
    check_options(options, RankInfo.from_env().world_size)
    ranks = join_ranks(options)
    train_pairs, valid_pairs = open_data(options, ranks)
    model = build_model(options, train_pairs, ranks)
    parallel_model = parallelize(model, options, ranks)
    optimizer = make_optimizer(model, options)
    run = open_run(options, ranks)
    step = load_checkpoint(run, model, optimizer)
    batches = make_batches(train_pairs, options, ranks, skip=step)
    losses: list[Tensor] = []
    with StopSignal() as stop, RunLog(run, options, step, is_writer=is_first_rank()) as log:
        while step < options.steps and not stop.agreed:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, options)
            losses.append(training_step(parallel_model, optimizer, batches, options, ranks))
            step += 1
            is_last = step == options.steps
            saves = is_due(step, options.checkpoint_every)
            if is_last or saves or is_due(step, LOG_EVERY):
                losses_N, stop.agreed = exchange(losses, stop.requested, ranks)
                log.write_losses(step, losses_N)
                losses = []
            if is_last or is_due(step, options.steps // 3):
                log.write_score(step, validate(parallel_model, valid_pairs, options, ranks))
            if saves or stop.agreed:
                save_checkpoint(run, step, model, optimizer)
            if not losses:
                log.restart_clock()  # validation and checkpoints do not count as training time
    if step < options.steps:
        log.say(f"stopped by a signal after step {step}; continue with --resume {run}")
        return leave(ranks, STOPPED)
    save_weights(run, model)
    return leave(ranks, 0)


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every ``every`` steps happens after this step. 0 means never."""
    return every > 0 and step % every == 0


# Ranks


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks that train together.

    Attributes:
        info: The rank and the number of ranks, as torchrun or srun says.
        device: Where this rank computes.
        store: The key-value store of all ranks, or None if there is only one rank.
        mesh: All ranks as a grid. Ranks in one row ("tensor") share each layer and have the same samples. Ranks in one
            column ("data") have different samples. None if there is only one rank.
    """

    info: RankInfo
    device: torch.device
    store: dist.Store | None
    mesh: DeviceMesh | None

    @property
    def data_rank(self) -> int:
        """The number of this rank among those with different samples."""
        return 0 if self.mesh is None else self.mesh["data"].get_local_rank()

    @property
    def data_ranks(self) -> int:
        """The number of ranks with different samples."""
        return 1 if self.mesh is None else self.mesh["data"].size()


def join_ranks(options: argparse.Namespace) -> Ranks:
    """Form the process group of all ranks that torchrun or srun has started."""
    info = RankInfo.from_env()
    if info.world_size == 1:
        return Ranks(info, torch.device(machine.device()), None, None)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = process_group.rendezvous(info)
    device = process_group.make_process_group(info, store, backend)
    shape = (info.world_size // options.tensor, options.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor"))
    return Ranks(info, device, store, mesh)


def open_run(options: argparse.Namespace, ranks: Ranks) -> Path:
    """Return the folder of the run: the one to resume, or a new one that rank 0 makes."""
    if options.resume:
        return Path(options.resume)
    shared: list[Any] = [create_run(options) if is_first_rank() else None]
    if ranks.mesh is not None:
        dist.broadcast_object_list(shared, src=0)
    return shared[0]


def exchange(losses: list[Tensor], stop_requested: bool, ranks: Ranks) -> tuple[Tensor, bool]:
    """Average the losses over all ranks, and agree on whether to stop.

    A signal can reach the ranks at different steps. If one rank stopped alone, the others would wait for it forever.

    Returns:
        The mean losses, shape (number of losses,), and whether any rank was asked to stop.
    """
    values = torch.stack([*losses, torch.tensor(float(stop_requested), device=ranks.device)])
    if ranks.mesh is not None:
        dist.all_reduce(values)
        values /= ranks.info.world_size
    values = values.cpu()
    return values[:-1], bool(values[-1] > 0)


def leave(ranks: Ranks, status: int) -> int:
    """Return the status to the caller; with several ranks, end this process with it instead.

    Only rank 0 ends with a status other than 0, and it ends last, because srun and torchrun kill all other ranks as
    soon as one of them ends with such a status.
    """
    if ranks.store is not None:
        process_group.leave(ranks.info, ranks.store, status if is_first_rank() else 0)
    return status


class StopSignal:
    """Inside ``with``, note SIGUSR1 (of Slurm, before the time limit), SIGTERM and SIGINT (Ctrl-C) instead of ending.

    Attributes:
        requested: Whether this rank has received such a signal.
        agreed: Whether all ranks have agreed to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self.agreed = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            self._previous_handlers[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends the program at once

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)


# Data, model, optimizer


def open_data(options: argparse.Namespace, ranks: Ranks) -> tuple[Pairs, Pairs]:
    """Open the training and validation pairs; rank 0 simulates the data of the preset first, if they are missing."""
    folder = options.data
    if folder is None:
        preset = config.preset(options.preset)
        if is_first_rank():
            weather.ensure(preset)
        barrier()
        folder = weather.ensure(preset)
    _, height, width = store.open_split(folder, "train").shape
    patch = config.PRESETS[options.preset].patch
    crop = height // patch * patch, width // patch * patch  # ERA5 has 721 rows, which no patch divides
    return Pairs(store.open_split(folder, "train", crop)), Pairs(store.open_split(folder, "valid", crop))


def make_batches(pairs: Pairs, options: argparse.Namespace, ranks: Ranks, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return this rank's part of each global batch, (x_BCHW, y_BCHW), from batch number ``skip`` on."""
    return endless_batches(
        pairs, options.global_batch_size, roll=True, workers=options.workers, seed=options.seed,
        rank=ranks.data_rank, world_size=ranks.data_ranks, skip=skip, pin=ranks.device.type == "cuda",
    )  # fmt: skip


def build_model(options: argparse.Namespace, pairs: Pairs, ranks: Ranks) -> ViT:
    """Return the preset's vision transformer. The seed gives all ranks the same initial weights."""
    preset = config.PRESETS[options.preset]
    torch.manual_seed(options.seed)
    model = ViT(
        *pairs.split.shape, preset.patch, preset.dim, preset.depth, preset.heads,
        checkpoint_blocks=options.checkpoint_activations,
    )  # fmt: skip
    return model.to(ranks.device)


def parallelize(model: ViT, options: argparse.Namespace, ranks: Ranks) -> nn.Module:
    """Split the model over the ranks, in place, or wrap it by DDP. Return the module that computes forecasts."""
    if options.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    if ranks.mesh is not None and options.tensor > 1:
        for block in model.blocks:
            parallelize_module(block, ranks.mesh["tensor"], TENSOR_PLAN)
    if options.compile:
        lacking = compiling.missing(ranks.device.type)
        if lacking:
            raise CourseError(f"--compile needs {lacking}, which is not installed; install it, or leave out --compile")
        compiling.prepare()
        for block in model.blocks:
            block.compile()  # all blocks are equal, so one compilation serves them all
    if options.shard == "full" and ranks.mesh is not None:
        policy = MixedPrecisionPolicy()
        if options.precision == "bf16":
            policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
        for module in (*model.blocks, model):
            fully_shard(module, mesh=ranks.mesh["data"], mp_policy=policy)
            if ranks.device.type == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo can sum, but it cannot average
        return model
    if ranks.data_ranks > 1:
        return DistributedDataParallel(model)
    return model


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.AdamW:
    """Return AdamW. Its weight decay acts on the matrices of the linear layers only."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    # One kernel for many tensors needs tensors on one mesh; with tensor parallelism there are two.
    foreach = False if options.tensor > 1 else None
    return torch.optim.AdamW(groups, options.learning_rate, betas=(0.9, 0.95), foreach=foreach)


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Return the learning rate of a step, counted from 0: a linear warm-up, then half a cosine to 1% of the peak."""
    decay = cosine(options.steps - options.warmup_steps, 0.01)
    return options.learning_rate * warm_up(options.warmup_steps, then=decay)(step)


# One step, and the validation


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
    options: argparse.Namespace,
    ranks: Ranks,
) -> Tensor:
    """Update the weights once.

    Returns:
        The loss of this rank's samples before the update. It stays on the device, because reading it would make the
        CPU wait for the device in each step.
    """
    with annotate("load"):
        x_BCHW, y_BCHW = next(batches)
    with annotate("to device"):
        x_BCHW = x_BCHW.to(ranks.device, non_blocking=True)
        y_BCHW = y_BCHW.to(ranks.device, non_blocking=True)
    optimizer.zero_grad()
    total_loss = torch.zeros((), device=ranks.device)
    micro_batches = list(zip(x_BCHW.chunk(options.accumulate), y_BCHW.chunk(options.accumulate), strict=True))
    for number, (x, y) in enumerate(micro_batches, start=1):
        with gradients_averaged(model, number == len(micro_batches)):
            with annotate("forward"), autocast(model, options, ranks):
                loss = F.mse_loss(model(x), y) / len(micro_batches)
            with annotate("backward"):
                loss.backward()
        total_loss += loss.detach()
    with annotate("optimizer"):
        clip_gradients(model, max_norm=1.0)
        optimizer.step()
    return total_loss


@contextlib.contextmanager
def gradients_averaged(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Inside ``with``, the backward pass averages gradients over the ranks only if ``enabled``.

    With gradient accumulation, one communication after the last micro-batch is enough.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    if isinstance(model, DistributedDataParallel) and not enabled:
        with model.no_sync():
            yield
    else:
        yield


def autocast(model: nn.Module, options: argparse.Namespace, ranks: Ranks) -> torch.autocast:
    """Return the context that computes matrix products in bfloat16. ``fully_shard`` does that by its own policy."""
    enabled = options.precision == "bf16" and not isinstance(model, FSDPModule)
    return torch.autocast(ranks.device.type, torch.bfloat16, enabled=enabled)


def clip_gradients(model: nn.Module, max_norm: float) -> None:
    """Scale all gradients so that the norm of all of them together is at most ``max_norm``.

    ``torch.nn.utils.clip_grad_norm_`` does the same, but it needs all parameters on one mesh. With tensor parallelism
    some parameters are split over other ranks than the rest.
    """
    parameters_of_mesh = defaultdict(list)
    for parameter in model.parameters():
        parameters_of_mesh[getattr(parameter, "device_mesh", None)].append(parameter)
    norms = []
    for group in parameters_of_mesh.values():
        norm = nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total_norm = torch.stack(norms).norm()
    for group in parameters_of_mesh.values():
        nn.utils.clip_grads_with_norm_(group, max_norm, total_norm)


@torch.no_grad()
def validate(model: nn.Module, pairs: Pairs, options: argparse.Namespace, ranks: Ranks) -> float:
    """Forecast all validation pairs, shared among the ranks.

    Returns:
        The root mean squared error, as a share of that of persistence, the forecast that nothing changes.
    """
    n = len(pairs)
    n_rounds = math.ceil(n / (16 * ranks.data_ranks))
    squares_2 = torch.zeros(2, device=ranks.device)  # of the model, of persistence
    for round_number in range(n_rounds):
        first = 16 * (round_number * ranks.data_ranks + ranks.data_rank)
        # All ranks must make the same number of forecasts. A rank without samples repeats the first, and counts none.
        indices = range(first, min(first + 16, n))
        x_BCHW, y_BCHW = default_collate([pairs[i] for i in indices or [0]])
        x_BCHW, y_BCHW = x_BCHW.to(ranks.device), y_BCHW.to(ranks.device)
        with autocast(model, options, ranks):
            forecast_BCHW = model(x_BCHW)
        errors_2 = torch.stack([F.mse_loss(forecast_BCHW.float(), y_BCHW), F.mse_loss(x_BCHW, y_BCHW)])
        squares_2 += len(indices) * errors_2
    if ranks.mesh is not None:
        dist.all_reduce(squares_2)
    return (squares_2[0] / squares_2[1]).sqrt().item()


if __name__ == "__main__":
    sys.exit(run_command(main))
