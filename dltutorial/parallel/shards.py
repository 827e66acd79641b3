"""ZeRO by hand: optimizer state, gradients and weights are divided into shards, one for each rank.

Inputs are a model on each rank, whose random weights may differ, the blocks that are gathered one at a time, and a
stage. The output is the same model with rank 0's weights. If all ranks have batches of the same size, training equals
that of one process on the samples of all ranks.

After a backward pass, a rank holds the following bytes for P float32 weights on N ranks with Adam:

    stage 1   the optimizer state is sharded                           8 P + 8 P / N
    stage 2   the gradients are sharded, too, as they become ready     4 P + 12 P / N
    stage 3   the weights are sharded, too, except in a block at work  16 P / N

The parameters of a :class:`Unit` are views of one flat tensor. The tensor is padded with zeros to N shards of one size:

    parameters    weight (2, 3)     bias (2)     weight (1, 3)
    flat_P        w  w  w  w        w  w  b  b       w  w  w  0
    shards        rank 0            rank 1           rank 2

    gather()      all-gather       all ranks' shards  →  flat_P on all ranks
    reduce()      reduce-scatter   all gradients      →  the mean of this rank's shard
    release()     no communication; the memory of flat_P is freed

:class:`Sharded` calls these methods from hooks of the modules, and in ``step()``. Frozen parameters are not sharded.
Torch's counterparts are ``ZeroRedundancyOptimizer`` (stage 1) and ``fully_shard`` (stage 3).

Source: Rajbhandari et al. 2020 (arXiv:1910.02054). The hooks are those of Zhao et al. 2023 (arXiv:2304.11277).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.errors import CourseError
from dltutorial.parallel.ddp import broadcast_tensors
from dltutorial.parallel.tensor import all_gather, reduce_scatter

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Unit:
    """Parameters that are gathered, reduced and released together. Each rank owns one shard of them."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, stage: int) -> None:
        """Copy the parameters of rank 0 into one flat tensor, and make them views of it.

        Args:
            parameters: The parameters, each of them once. They have the same dtype and device.
            stage: 1, 2 or 3.
        """
        self.parameters = list(parameters)
        self.stage = stage
        self.world_size = dist.get_world_size()
        self.sizes = [p.numel() for p in parameters]
        self.n_padding = -sum(self.sizes) % self.world_size
        self.flat_P = self._flatten([p.detach() for p in parameters])
        dist.broadcast(self.flat_P, 0)
        *places, _ = self.flat_P.split([*self.sizes, self.n_padding])
        for p, place in zip(parameters, places, strict=True):
            p.data = place.view_as(p)  # from now on, every change of flat_P changes the parameter
        own = self.flat_P.chunk(self.world_size)[dist.get_rank()]
        if stage == 3:
            own = own.clone()  # the shard needs memory of its own, because flat_P is released
        self.shard = nn.Parameter(own)
        self.n_missing = len(parameters)  # gradients that are not ready yet
        self.in_backward = False
        self._n_bytes = self.flat_P.nbytes
        self.release()

    def _flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Concatenate tensors and the padding into one flat tensor."""
        padding = tensors[0].new_zeros(self.n_padding)
        return torch.cat([*(t.flatten() for t in tensors), padding])

    def gather(self) -> None:
        """Get the weights of all ranks' shards, if they are not here. The parameters can be used afterwards."""
        storage = self.flat_P.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self._n_bytes)
            all_gather(self.flat_P, self.shard.detach())

    def release(self) -> None:
        """In stage 3, free the memory of the weights. The parameters are still views of it, but without values."""
        if self.stage == 3:
            self.flat_P.untyped_storage().resize_(0)

    def reduce(self) -> None:
        """Average all gradients over the ranks, and add the mean of this rank's shard to ``shard.grad``.

        The gradients of the parameters are freed.
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        mean = torch.empty_like(self.shard)
        reduce_scatter(mean, self._flatten(gradients))
        mean /= self.world_size
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean
        for p in self.parameters:
            p.grad = None

    def send_updated(self) -> None:
        """In stages 1 and 2, give all ranks the updated shards."""
        all_gather(self.flat_P, self.shard.detach().clone())


class Sharded(nn.Module):
    """A model and its optimizer in shards. Call it like the model, then ``loss.backward()``, then ``step()``."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        stage: int,
        blocks: Iterable[nn.Module] = (),
    ) -> None:
        """Make one unit for each block, and one for all other parameters.

        Args:
            model: The model, on its device.
            make_optimizer: A function such as ``torch.optim.AdamW``. Its argument is the list of this rank's shards.
            stage: 1, 2 or 3.
            blocks: Submodules whose parameters are not used outside of them, because stage 3 releases these parameters
                after the block. Without blocks, the whole model is one unit.
        """
        super().__init__()
        self.model = model
        self.stage = stage
        self.unit_of = make_units(model, list(blocks), stage)
        self.units = list(self.unit_of.values())
        broadcast_untrained(model)
        self.optimizer = make_optimizer([unit.shard for unit in self.units])
        for module, unit in self.unit_of.items():
            self.register_gradient_hooks(unit)
            if stage == 3:
                self.register_weight_hooks(module, unit)

    def register_gradient_hooks(self, unit: Unit) -> None:
        """In stages 2 and 3, reduce the gradients of a unit when its last gradient is ready."""

        def on_gradient(parameter: nn.Parameter) -> None:
            unit.n_missing -= 1
            if unit.n_missing == 0:
                unit.n_missing = len(unit.parameters)
                unit.in_backward = False
                if self.stage > 1:
                    unit.reduce()
                unit.release()

        for parameter in unit.parameters:
            parameter.register_post_accumulate_grad_hook(on_gradient)

    def register_weight_hooks(self, module: nn.Module, unit: Unit) -> None:
        """In stage 3, gather the weights of a unit before each use, and release them afterwards."""
        is_block = module is not self.model

        def before_forward(*_: Any) -> None:
            unit.gather()

        def after_forward(*_: Any) -> None:
            # Activation checkpointing repeats the forward pass of a block during its backward pass. The block needs
            # its weights until the backward pass ends.
            if unit.in_backward:
                return
            # Weights outside of the blocks are used at the beginning of the backward pass, so they stay.
            if is_block or not torch.is_grad_enabled():
                unit.release()

        def before_backward(*_: Any) -> None:
            unit.in_backward = True
            unit.gather()

        module.register_forward_pre_hook(before_forward)
        module.register_forward_hook(after_forward)
        if is_block:
            module.register_full_backward_pre_hook(before_backward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own forward pass."""
        return self.model(*args, **kwargs)

    def reduce(self) -> None:
        """In stage 1, average the gradients. In stages 2 and 3 the hooks have already averaged them."""
        if self.stage == 1:
            for unit in self.units:
                unit.reduce()

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm over the shards of all ranks is at most ``max_norm``.

        Returns:
            The norm before the scaling.
        """
        self.reduce()
        gradients = [unit.shard.grad for unit in self.units if unit.shard.grad is not None]
        sum_of_squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        dist.all_reduce(sum_of_squares)
        norm = sum_of_squares.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient *= factor
        return norm

    def step(self) -> None:
        """Update this rank's shards, and reset the gradients. In stages 1 and 2, send the updated shards to all ranks.

        Raises:
            CourseError: The loss does not depend on all parameters of a unit, in stages 2 and 3.
        """
        self._check_no_gradient_is_missing()
        with torch.no_grad():
            if any(p.grad is not None for unit in self.units for p in unit.parameters):
                self.reduce()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.stage < 3:
                for unit in self.units:
                    unit.send_updated()

    def _check_no_gradient_is_missing(self) -> None:
        """Raise an error if some gradients of a unit are ready and others are not, so that none were reduced."""
        if self.stage == 1:
            return
        for unit in self.units:
            if unit.n_missing < len(unit.parameters):
                raise CourseError(f"{unit.n_missing} parameters of a unit have no gradient; freeze what is not used")

    def full_state(self) -> dict[str, Tensor]:
        """Return the ``state_dict`` of the whole model in host memory. All ranks must call this together."""
        value_of: dict[Tensor, Tensor] = {}
        for unit in self.units:
            unit.gather()
            for p in unit.parameters:
                value_of[p] = copy_to_host(p)
            unit.release()
        state = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            state[name] = value_of[tensor] if tensor in value_of else copy_to_host(tensor)
        return state


def make_units(model: nn.Module, blocks: Sequence[nn.Module], stage: int) -> dict[nn.Module, Unit]:
    """Make the units of a model.

    Returns:
        The unit of each block, and that of all other parameters with the model as its key. A module without other
        trainable parameters has no unit.
    """
    parameters_of = {block: trainable_parameters(block) for block in blocks}
    in_blocks = {p for parameters in parameters_of.values() for p in parameters}
    remaining = [p for p in trainable_parameters(model) if p not in in_blocks]
    unit_of = {}
    with torch.no_grad():
        for module, parameters in [(model, remaining), *parameters_of.items()]:
            if parameters:
                unit_of[module] = Unit(parameters, stage=stage)
    return unit_of


def broadcast_untrained(model: nn.Module) -> None:
    """Copy rank 0's buffers and frozen parameters to all ranks."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    broadcast_tensors([*frozen, *model.buffers()])


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module that are trained."""
    return [p for p in module.parameters() if p.requires_grad]


def copy_to_host(tensor: Tensor) -> Tensor:
    """Return a copy of the values in host memory."""
    return tensor.detach().cpu().clone()
