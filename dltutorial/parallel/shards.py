"""ZeRO by hand: weights, gradients and an optimizer's averages, cut into pieces that the ranks share.

In: a model, on each rank with whatever random weights; the blocks that are gathered one at a time; a stage. Out: the
same model with rank 0's weights, trained as one process would train it on all ranks' samples, if all ranks have
equally many. After a backward pass a rank holds, in bytes, for P float32 weights on N ranks and with Adam:

    stage 1   the averages are cut                     8 P + 8 P / N
    stage 2   gradients, too, as they arrive           4 P + 12 P / N
    stage 3   weights, too, but while a block works    16 P / N

- :class:`Unit` holds some parameters in one row (P, padded to N pieces) and knows the three messages;
- :class:`Sharded` calls them: from hooks, and in ``step()``.

Frozen parameters stay whole on every rank. Torch's are ``ZeroRedundancyOptimizer`` (stage 1) and ``fully_shard``.

Source: Rajbhandari et al. 2020 (arXiv:1910.02054); the hooks are those of Zhao et al. 2023 (arXiv:2304.11277).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.errors import CourseError
from dltutorial.parallel.tensor import all_gather, reduce_scatter

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Unit:
    """Parameters that are gathered, reduced and released together: one row, of which each rank owns a piece."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, stage: int) -> None:
        """Lay the parameters end to end, as rank 0 has them, and cut the row.

        Args:
            parameters: each once, all of one dtype and on one device.
            stage: 1, 2 or 3.

        Raises:
            CourseError: parameters of several dtypes or devices.
        """
        if len({(p.dtype, p.device) for p in parameters}) > 1:
            raise CourseError("parameters of several dtypes or devices in one unit; make them alike")
        self.parameters, self.stage, self.world_size = list(parameters), stage, dist.get_world_size()
        self.sizes = [p.numel() for p in parameters]
        self.whole_P = self._row([p.detach() for p in parameters])
        dist.broadcast(self.whole_P, 0)
        for p, piece in zip(parameters, self.whole_P.split([*self.sizes, self.n_padding])[:-1], strict=True):
            p.data = piece.view_as(p)  # from now on a view: who fills the row fills the weights
        mine = self.whole_P.chunk(self.world_size)[dist.get_rank()]
        self.shard = nn.Parameter(mine.clone() if stage == 3 else mine)
        self.missing, self.in_backward = len(parameters), False
        self._n_bytes = self.whole_P.nbytes
        self.release()

    @property
    def n_padding(self) -> int:
        """Zeros at the end of the row, so that all pieces are equally long."""
        return -sum(self.sizes) % self.world_size

    def _row(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([*(t.flatten() for t in tensors), tensors[0].new_zeros(self.n_padding)])

    @property
    def is_whole(self) -> bool:
        """Whether the row is there."""
        return self.whole_P.untyped_storage().nbytes() > 0

    def gather(self) -> None:
        """When this returns, the weights are whole."""
        if not self.is_whole:
            self.whole_P.untyped_storage().resize_(self._n_bytes)
            all_gather(self.whole_P, self.shard.detach())

    def release(self) -> None:
        """Stage 3: give the row's memory back. The weights are still views of it, of nothing."""
        if self.stage == 3:
            self.whole_P.untyped_storage().resize_(0)

    def reduce(self) -> None:
        """Send all gradients; keep the mean of this rank's piece, added to what is there."""
        row_P = self._row([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        mine = torch.empty_like(self.shard)
        reduce_scatter(mine, row_P)
        mine /= self.world_size
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None

    def send_updated(self) -> None:
        """Stages 1 and 2: after an update, all ranks get all pieces."""
        all_gather(self.whole_P, self.shard.detach().clone())


class Sharded(nn.Module):
    """A model and its optimizer in pieces. Call it as the model; ``loss.backward()``; then ``step()``."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, *, stage: int, blocks: Iterable[nn.Module] = (),
    ) -> None:  # fmt: skip
        """Cut the model into units: each block, and all the rest.

        Args:
            model: on its device.
            make_optimizer: such as ``torch.optim.AdamW``; it is given this rank's pieces.
            stage: 1, 2 or 3.
            blocks: submodules in the order in which they work; without any, the whole model is one unit.

        Raises:
            CourseError: no process group, no such stage, nothing to train, or a block's parameter used elsewhere, too.
        """
        super().__init__()
        if not dist.is_initialized():
            raise CourseError("no process group: pieces need several ranks; run inside launch(f, n) or torchrun")
        if stage not in (1, 2, 3):
            raise CourseError(f"stage {stage!r}: 1 cuts averages, 2 gradients, 3 weights; for none of it take DDP")
        self.model, self.stage = model, stage
        blocks = list(blocks)
        owned = [_trained(block) for block in blocks]
        inside = [p for parameters in owned for p in parameters]
        if len(set(inside)) < len(inside) or any(n != _uses(model)[p] for b in blocks for p, n in _uses(b).items()):
            raise CourseError("a parameter of a block is used outside of it; leave that block out")
        rest = [p for p in _trained(model) if p not in set(inside)]
        with torch.no_grad():
            pairs = zip([model, *blocks], [rest, *owned], strict=True)
            made = [(module, Unit(parameters, stage=stage)) for module, parameters in pairs if parameters]
            for tensor in [*(p for p in model.parameters() if not p.requires_grad), *model.buffers()]:
                dist.broadcast(tensor, 0)
        if not made:
            raise CourseError("no parameter of this model is to be trained; set requires_grad, or do without shards")
        self.units = [unit for _, unit in made]
        self.optimizer = make_optimizer([unit.shard for unit in self.units])
        for module, unit in made:
            self._listen(module, unit)

    def _listen(self, module: nn.Module, unit: Unit) -> None:
        """Hooks: whole before it is used, gone after, in both directions; reduced when its last gradient arrives."""

        def on_gradient(parameter: nn.Parameter) -> None:
            unit.missing -= 1
            if not unit.missing:
                unit.missing, unit.in_backward = len(unit.parameters), False
                if self.stage > 1:
                    unit.reduce()
                unit.release()

        for parameter in unit.parameters:
            parameter.register_post_accumulate_grad_hook(on_gradient)
        if self.stage < 3:
            return

        def before_forward(*_: Any) -> None:
            unit.gather()

        def after_forward(*_: Any) -> None:
            if not unit.in_backward and (module is not self.model or not torch.is_grad_enabled()):
                unit.release()  # but not the rest: its first and last layers are needed again soon

        def before_backward(*_: Any) -> None:
            unit.in_backward = True  # a block that is computed again there stays whole
            unit.gather()

        module.register_forward_pre_hook(before_forward)
        module.register_forward_hook(after_forward)
        if module is not self.model:
            module.register_full_backward_pre_hook(before_backward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward pass."""
        return self.model(*args, **kwargs)

    def reduce(self) -> None:
        """Stage 1: send the gradients, which are whole until now. In the others they have gone already."""
        for unit in self.units if self.stage == 1 else ():
            unit.reduce()

    def clip(self, largest: float) -> Tensor:
        """Scale all gradients so that their norm, over all ranks' pieces, is at most this; the norm before."""
        self.reduce()
        gradients = [unit.shard.grad for unit in self.units if unit.shard.grad is not None]
        squares = torch.stack([g.square().sum() for g in gradients]).sum()
        dist.all_reduce(squares)
        norm = squares.sqrt()
        for gradient in gradients:
            gradient *= (largest / (norm + 1e-6)).clamp(max=1.0)
        return norm

    def step(self) -> None:
        """Update this rank's pieces; then let the others have them, if they hold whole weights.
        CourseError: a parameter took no part in the loss.
        """
        odd = [unit for unit in self.units if unit.missing < len(unit.parameters)] if self.stage > 1 else []
        if odd:
            raise CourseError(f"{odd[0].missing} parameters of a unit have no gradient; freeze what is not used")
        with torch.no_grad():
            if any(p.grad is not None for unit in self.units for p in unit.parameters):
                self.reduce()
            self.optimizer.step()
            self.optimizer.zero_grad()
            for unit in self.units if self.stage < 3 else ():
                unit.send_updated()

    def full_state(self) -> dict[str, Tensor]:
        """The whole model's ``state_dict``, on every rank, in host memory: all ranks must ask for it."""
        whole: dict[Tensor, Tensor] = {}
        for unit in self.units:
            unit.gather()
            whole |= {p: p.detach().cpu().clone() for p in unit.parameters}
            unit.release()
        state = self.model.state_dict(keep_vars=True)
        return {name: whole[t] if t in whole else t.detach().cpu().clone() for name, t in state.items()}


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """How many names each trained parameter has."""
    return Counter(p for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad)
