"""How the ranks of ``dltutorial train`` share the work: the process group, the mesh of ranks, and the model on it.

Input: the model that every rank has built, and the options ``--shard`` and ``--tensor``.
Output: a model with the same result as on one rank. Its parameters are

    without these options   complete on each rank; DDP averages the gradients (chapter 09)
    with --shard full       sharded by ``fully_shard`` over the data-parallel group (chapter 17)
    with --tensor N         split by ``parallelize_module``, as DTensors, over a tensor-parallel group of N ranks
                            (chapter 18)

The docstring of ``ThisRank`` explains the two groups. ``train_options.py`` refuses DDP together with ``--tensor``.

Sources: the pages on ``torch.distributed``, ``fully_shard`` and ``torch.distributed.tensor.parallel`` in
https://docs.pytorch.org/docs/stable/.
"""

import argparse
import contextlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.launch import process_group
from dltutorial.models.vit import ViT
from dltutorial.ranks import RankInfo
from dltutorial.step import compiling


@dataclass(frozen=True)
class ThisRank:
    """The place of this process among all ranks, and in the two groups to which it belongs.

    The ranks of a tensor-parallel group share the layers. Each of them has a part of every layer that is split, and all
    of them read the same samples. The ranks of a data-parallel group share the samples. They have the same parts of the
    layers, and each of them reads other samples. With four ranks and ``--tensor 2`` the groups are::

        tensor-parallel groups    0, 1    2, 3
        data-parallel groups      0, 2    1, 3

    So ranks 0 and 2 have the first half of each layer that is split, and ranks 1 and 3 have the second half. Without
    ``--tensor``, the data-parallel group contains all ranks.

    Attributes:
        info: The number of this rank, and how many ranks there are, as torchrun or srun has set them.
        device: The device on which this rank computes.
        mesh: The groups of this rank. ``mesh["data"]`` is its data-parallel group, and ``mesh["tensor"]`` is its
            tensor-parallel group. If there is only one rank, ``mesh`` is None.
        store: The key-value store that the ranks use to find each other at the start, and to wait for each other at
            the end. It is None if there is only one rank.
        data_parallel_rank, data_parallel_size: The number of this rank in its data-parallel group, and the number of
            ranks in this group.
    """

    info: RankInfo
    device: torch.device
    mesh: DeviceMesh | None = None
    store: dist.Store | None = None
    data_parallel_rank: int = 0
    data_parallel_size: int = 1

    @property
    def rank(self) -> int:
        """The number of this rank; rank 0 prints, and writes the files."""
        return self.info.rank


def join_process_group(options: argparse.Namespace) -> ThisRank:
    """Join the other ranks that torchrun or srun has started, if there are any."""
    info = RankInfo.from_env()
    if info.world_size == 1:
        return ThisRank(info, torch.device(machine.device()))
    # NCCL communicates tensors in GPU memory. gloo communicates tensors in CPU memory, and Python objects.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = process_group.rendezvous(info)  # waits for all ranks
    device = process_group.make_process_group(info, store, backend)
    data_parallel_size = info.world_size // options.tensor
    mesh = init_device_mesh(device.type, (data_parallel_size, options.tensor), mesh_dim_names=("data", "tensor"))
    return ThisRank(info, device, mesh, store, mesh["data"].get_local_rank(), data_parallel_size)


def exit_with_rank_0_last(this_rank: ThisRank, status: int) -> NoReturn:
    """End this process, which is one of several ranks. Rank 0 ends with the exit status, the other ranks with 0.

    srun and torchrun kill all ranks when one of them ends with a status other than 0. Therefore rank 0 waits until the
    other ranks have ended.
    """
    assert this_rank.store is not None  # it is None only if there is one rank
    if this_rank.rank != 0:
        status = 0
    process_group.leave(this_rank.info, this_rank.store, status)


def broadcast_from_rank_0(value: Any) -> Any:
    """Send the value of rank 0 to all ranks, and return it. The values of the other ranks are ignored."""
    shared = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(shared, src=0)  # replaces the value in the list of the other ranks
    return shared[0]


def is_true_on_all_ranks(value: bool) -> bool:
    """Return whether every rank has the value True."""
    if not dist.is_initialized():
        return value
    values = [False] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return all(values)


def is_rank_0() -> bool:
    """Return whether this process is rank 0, or the only process."""
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier() -> None:
    """Wait until every rank has reached this line."""
    if dist.is_initialized():
        dist.barrier()


def parallelize(model: ViT, options: argparse.Namespace, this_rank: ThisRank) -> nn.Module:
    """Switch TF32 on or off, then split the layers, compile the blocks, and shard or wrap the model.

    Torch needs this order: ``fully_shard`` shards what is already split, and it adds steps around the compiled blocks.
    Tensor parallelism and ``fully_shard`` change the model itself, and DDP is a wrapper around it.

    Returns:
        The module to call in the forward pass, which is DDP or the model itself.
    """
    uses_tf32 = options.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = uses_tf32  # of matrix products
    torch.backends.cudnn.allow_tf32 = uses_tf32  # of convolutions
    if options.tensor > 1:
        split_layers(model, this_rank)
    if options.compile:
        compile_blocks(model, this_rank)
    if options.shard == "full" and this_rank.mesh is not None:
        shard_parameters(model, options, this_rank)
    elif this_rank.data_parallel_size > 1:
        return DistributedDataParallel(model)
    return model


def split_layers(model: ViT, this_rank: ThisRank) -> None:
    """Split the linear layers of each block over the ranks of the tensor-parallel group.

    The layers are split in pairs. Each rank computes a part of the outputs of the first layer, for example some of the
    attention heads, and uses them as inputs of the second layer. Then an all-reduce adds the partial results.
    """
    plan = {
        "attention.qkv": ColwiseParallel(),  # this ViT stores qkv head by head, so a plain split keeps whole heads
        "attention.out": RowwiseParallel(),
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(),
    }
    assert this_rank.mesh is not None  # check_options allows --tensor only if there are several ranks
    for block in model.blocks:
        parallelize_module(block, this_rank.mesh["tensor"], plan)


def compile_blocks(model: ViT, this_rank: ThisRank) -> None:
    """Compile the blocks by ``torch.compile``. They have the same code, so one compilation serves them all."""
    missing = compiling.missing(this_rank.device.type)
    if missing:
        raise CourseError(f"--compile needs {missing}, which is not installed; install it, or leave out --compile")
    compiling.prepare()
    for block in model.blocks:
        block.compile()


def shard_parameters(model: ViT, options: argparse.Namespace, this_rank: ThisRank) -> None:
    """Give each rank of the data-parallel group a shard of the parameters.

    Its gradients and its optimizer state are shards, too, because they have the shapes of the parameters.
    """
    assert this_rank.mesh is not None
    data_parallel_group = this_rank.mesh["data"]
    precision_of_blocks = MixedPrecisionPolicy()
    if options.precision == "bf16":
        precision_of_blocks = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
    for block in model.blocks:
        fully_shard(block, mesh=data_parallel_group, mp_policy=precision_of_blocks)
    fully_shard(model, mesh=data_parallel_group)  # the parameters that are in no block, in float32
    if this_rank.device.type == "cpu":
        sum_instead_of_average(model)


def sum_instead_of_average(model: ViT) -> None:
    """Make ``fully_shard`` sum the gradients and then divide them by the number of ranks.

    By default it asks the backend for an average, and gloo, the backend on CPUs, has no average.

    Raises:
        CourseError: This version of torch cannot do that.
    """
    if not hasattr(model, "set_force_sum_reduction_for_comms"):
        raise CourseError("--shard full on CPUs needs a newer torch; install one, or leave out --shard")
    for module in (*model.blocks, model):
        module.set_force_sum_reduction_for_comms(True)


def gradient_sync(model: nn.Module, enabled: bool) -> contextlib.AbstractContextManager:
    """Let the backward pass inside ``with`` average the gradients over the ranks only if ``enabled``.

    With gradient accumulation, it is enough to average once, after the last micro-batch.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    elif isinstance(model, DistributedDataParallel) and not enabled:
        return model.no_sync()
    return contextlib.nullcontext()


def bf16_context(model: nn.Module, options: argparse.Namespace, this_rank: ThisRank) -> torch.autocast:
    """Return a context in which matrix products are computed in bfloat16, if ``--precision bf16`` is set.

    It is disabled for ``fully_shard``, because ``shard_parameters`` has already set the precision of the blocks.
    """
    enabled = options.precision == "bf16" and not isinstance(model, FSDPModule)
    return torch.autocast(this_rank.device.type, torch.bfloat16, enabled=enabled)


def clip_gradients(model: nn.Module, max_norm: float) -> None:
    """Scale all gradients by one factor so that the norm of all of them together is at most ``max_norm``.

    ``torch.nn.utils.clip_grad_norm_`` does the same, but only if all parameters are on one mesh, or all are on none.
    With ``--tensor`` they are not. So the norm is computed for the parameters of each mesh and then combined.
    """
    parameters_by_mesh = defaultdict(list)
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)  # a parameter that is neither split nor sharded has no mesh
        parameters_by_mesh[mesh].append(parameter)
    norms = []
    for parameters in parameters_by_mesh.values():
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()  # the norm of all shards together
        norms.append(norm)
    total_norm = torch.stack(norms).norm()
    for parameters in parameters_by_mesh.values():
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm)
