"""A mesh of ranks, pipeline × data × context × tensor, and a model spread over it.

In: a model that all ranks hold alike, and a recipe. Out: a model that trains as in one process, and what a checkpoint
or ``weights.pt`` holds of it, which does not depend on the mesh.

    tensor    ranks next to each other: each has some of the heads and of the MLP's hidden numbers (parallel.tensor)
    context   each has some tokens of the same samples; keys and values go around (parallel.ring_attention)
    data      each has samples of its own
    pipeline  each has some of the blocks, and all samples of the ranks that it stands for (train.stages)

Ranks with the same pieces of the model, data × context of them, are *copies*. DDP takes the mean of their gradients;
with ``shard`` they share out averages, gradients and weights among them (parallel.shards).
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

from dltutorial.engine.distributed import all_or_none, data_world_size, world_size, wrap_ddp
from dltutorial.engine.recipe import RankRecipe
from dltutorial.engine.stages import Stage
from dltutorial.errors import CourseError
from dltutorial.parallel.ddp import broadcast_tensors
from dltutorial.parallel.ring_attention import RingAttention
from dltutorial.parallel.tensor import GatherTokens, all_gather, cut_block, joined, piece


class Mesh:
    """The ranks of one run, and what of a model this one holds.

    Attributes:
        model: what a training step calls.
        shard: what copies share out; none where there is a single one.
        stage: what a rank of a pipeline has of the model.
        cuts: parameters of which each rank of ``tensor`` has a piece: cut along which dim, of how many parts.
    """

    def __init__(self, model: nn.Module, recipe: RankRecipe) -> None:
        """Spread the model, in place. All ranks do so at the same time.

        Raises:
            CourseError: the model has no blocks that can be cut, or this torch cannot shard here.
        """
        n, device = world_size(), next(model.parameters()).device.type
        self._whole, self._every, self._groups = model, list(model.state_dict()), [[""]]
        self._n_tensor, self._n_copies = recipe.tensor, n // (recipe.tensor * recipe.pipeline)
        self.stage: Stage | None = None
        self.shard = recipe.shard if self._n_copies > 1 else "none"
        self._tensor = self._copies = dist.group.WORLD if n > 1 else None
        if recipe.ranks_per_sample > 1 or self.is_sharded:
            if device != "cpu" and dist.get_backend() == "gloo":  # some of its calls crash there
                raise CourseError("ranks that share a GPU cannot cut samples or weights; set device=cpu, or more GPUs")
            cut_space = getattr(model, "cut_space", None)  # a convolutional model's own way to share samples out
            if recipe.ranks_per_sample > 1 and not hasattr(model, "blocks") and not cut_space:
                raise CourseError(f"{type(model).__name__} has no blocks to cut; take tensor=context=pipeline=1")
            sizes = recipe.pipeline, data_world_size(recipe), recipe.context, recipe.tensor
            axes = init_device_mesh(device, sizes, mesh_dim_names=("pipeline", "data", "context", "tensor"))
            pieces = recipe.pipeline, self._n_copies, recipe.tensor
            copies = init_device_mesh(device, pieces, mesh_dim_names=("pipeline", "copies", "tensor"))
            self._tensor, self._copies = axes["tensor"].get_group(), copies["copies"].get_group()
            if recipe.context > 1:
                with all_or_none():
                    (cut_space or functools.partial(cut_tokens, model))(axes["context"].get_group())
            if recipe.tensor > 1:
                for block in model.blocks:  # type: ignore[union-attr]
                    cut_block(block.attention, block.mlp, self._tensor, parts=1)
            if recipe.pipeline > 1:
                self.stage = Stage(model, axes["pipeline"].get_group())
        names = {name: p.cut for name, p in model.named_parameters() if hasattr(p, "cut")}
        if self.is_sharded:
            options = {} if self.shard == "full" else {"reshard_after_forward": False}  # whole until the backward pass
            self.model = fully_sharded(self.stage or model, copies["copies"], **options)
        else:
            # Torch's DDP does not know the parts of a pipeline's batch: it stops at their second forward pass.
            kind = "late" if recipe.gradient_lag else "bucketed" if self.stage else recipe.ddp
            self.model = wrap_ddp(self.stage or model, kind, self._copies)
        self.cuts = {p: names[name] for name, p in model.named_parameters() if name in names}

    @property
    def is_sharded(self) -> bool:
        """Whether each weight lies in shards on its copies."""
        return self.shard in ("gradients", "full")

    def share(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer, or one of which each copy keeps the averages of some parameters."""
        names = {p: name for name, p in self._whole.named_parameters()}
        self._groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
        if self.shard != "optimizer":
            return optimizer
        from torch.distributed.optim import ZeroRedundancyOptimizer  # it takes a second

        kind, rate = type(optimizer), optimizer.defaults["lr"]
        return ZeroRedundancyOptimizer(optimizer.param_groups, kind, self._copies, lr=rate)

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        """Scale the gradients so that the norm of all of them, over all ranks' pieces, is at most this."""
        if not self.cuts and not self.stage:
            nn.utils.clip_grad_norm_(parameters, largest)
            return
        gradients = [(p in self.cuts, _local(p.grad)) for p in parameters if p.grad is not None]
        squares = torch.zeros(2, device=gradients[0][1].device)
        for is_cut, gradient in gradients:
            squares[int(is_cut)] += gradient.square().sum()
        if self.is_sharded:
            dist.all_reduce(squares, group=self._copies)
        dist.all_reduce(squares[1:], group=self._tensor)  # what all have is counted once
        if self.stage:
            dist.all_reduce(squares, group=self.stage.group)
        scale = (largest / (squares.sum().sqrt() + 1e-6)).clamp(max=1.0)
        for _, gradient in gradients:
            gradient *= scale

    def state(self, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
        """The ``state_dict`` of model and optimizer, on rank 0 as one process has them. All ranks call.

        Of what lies in shards each rank has its own, with how ``tensor`` has cut it, in place of the whole.
        """
        if self.shard == "optimizer":
            optimizer.consolidate_state_dict(to=0)  # type: ignore[attr-defined]
        if self._copies is not None and not self.is_sharded and dist.get_rank(self._copies) > 0:
            return {}, {}
        change = self.part if self.is_sharded else self.whole
        weights, averages = self._each(change, self._whole.state_dict(), optimizer.state_dict())
        averages = _renumbered(averages, self._groups, self._all_groups())
        if not self.stage or self.is_sharded:
            return weights, averages
        parts = self._of_stages((weights, averages["state"]))
        return _merged(part[0] for part in parts), averages | {"state": _merged(part[1] for part in parts)}

    def weights(self) -> dict:
        """The model's ``state_dict``, on rank 0 as one process has it. All ranks call."""
        found = self._each(self.whole, self._whole.state_dict(), {"state": {}})[0]
        whole = _merged(self._of_stages(found)) if self.stage else found
        return {name: whole[name] for name in self._every if name in whole}

    def placed(self, weights: dict, averages: dict) -> tuple[dict, dict]:
        """What this rank has of the ``state_dict`` of one process's model and optimizer. All ranks call."""
        others = set(self._every) - set(self._whole.state_dict())
        weights = {name: x for name, x in weights.items() if name not in others}
        return self._each(self.own, weights, _renumbered(averages, self._all_groups(), self._groups))

    def _all_groups(self) -> list[list[str]]:
        """Names of the parameters in each of the optimizer's groups, of all stages, as one process orders them."""
        by_stage = zip(*self._of_stages(self._groups), strict=True)
        return [sorted(chain(*parts), key=self._every.index) for parts in by_stage]

    def _of_stages(self, mine: Any) -> list:
        """What all stages have."""
        found = [mine] if self.stage is None else [None] * len(self.stage.ranks)
        if self.stage:
            dist.all_gather_object(found, mine, self.stage.group)
        return found

    def _each(self, change: Callable[[Any, Any], Any], weights: dict, averages: dict) -> tuple[dict, dict]:
        """Both with ``change(x, p)`` in place of each x of the parameter p; p is None for buffers and counts."""
        named, numbered = dict(self._whole.named_parameters()), [*chain(*self._groups)]
        weights = copy.copy(weights)  # with what torch has noted on it
        for name, x in weights.items():
            weights[name] = change(x, named.get(name))
        state = {}
        for n, kept in averages["state"].items():
            counts = {word for word, x in kept.items() if not torch.is_tensor(x) or x.ndim == 0}
            state[n] = {word: change(x, None if word in counts else named[numbered[n]]) for word, x in kept.items()}
        return weights, averages | {"state": state}

    def part(self, x: Any, p: Any) -> Any:
        """What this rank writes of x: how ``tensor`` has cut the whole, the dim of shards of its piece, its shard."""
        return x if _local(x) is x else (self.cuts.get(p), x.placements[0].dim, _local(x).cpu().clone())

    def whole(self, x: Any, p: Any) -> Any:
        """What one process has for this rank's x; if it is another tensor, in host memory."""
        found = x if _local(x) is x else x.full_tensor()
        if p in self.cuts:
            rows = found.new_empty(self._n_tensor * len(found), *found.shape[1:])
            all_gather(rows, found.detach().contiguous(), group=self._tensor)
            found = joined(rows.chunk(self._n_tensor), *self.cuts[p])
        return x if found is x and not (self.stage and torch.is_tensor(x)) else found.cpu()

    def own(self, x: Any, p: Any) -> Any:
        """What this rank has for one process's x."""
        if p in self.cuts:
            dim, parts = self.cuts[p]
            x = piece(x, dim, parts, self._tensor).detach()
        if p is None or _local(p) is p:
            return x
        if x.shape != p.shape:
            raise ValueError(f"{tuple(x.shape)} in place of {tuple(p.shape)}")
        shards = [*x.chunk(self._n_copies, p.placements[0].dim), *[x[:0]] * self._n_copies]
        mine = shards[dist.get_rank(self._copies)].to(p.device)
        return type(p.data).from_local(mine, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def _renumbered(averages: dict, before: list[list[str]], after: list[list[str]]) -> dict:
    """An optimizer's ``state_dict`` with the numbers of other groups, by the parameters' names; who has none is out."""
    names, numbers = [*chain(*before)], {name: n for n, name in enumerate(chain(*after))}
    state = {numbers[names[n]]: kept for n, kept in averages["state"].items() if names[n] in numbers}
    both = zip(averages["param_groups"], after, strict=True)
    groups = [options | {"params": [numbers[name] for name in group]} for options, group in both]
    return averages | {"state": state, "param_groups": groups}


def _merged(parts: Iterable[dict]) -> dict:
    return dict(chain.from_iterable(part.items() for part in parts))


def _local(x: Any) -> Any:
    """This rank's shard of a DTensor; of all else, itself."""
    return x.to_local() if hasattr(x, "to_local") else x


def fully_sharded(model: nn.Module, copies: DeviceMesh, **options: Any) -> nn.Module:
    """Torch's ``fully_shard`` for each block and for the rest, with the weights of the first of these ranks.

    Raises:
        CourseError: this torch cannot average gradients over these ranks.
    """
    from torch.distributed.fsdp import fully_shard  # it takes a second
    from torch.distributed.tensor import Shard

    n = copies.size()

    def placement(p: nn.Parameter) -> Shard:
        """Along the first dim that is long enough; torch cuts all but dim 0 into equal shards only."""
        fits = [dim for dim, size in enumerate(p.shape) if size >= n and (dim == 0 or size % n == 0)]
        return Shard(fits[0] if fits else 0)

    broadcast_tensors([*model.parameters(), *model.buffers()], copies.get_group())
    probe = nn.Linear(1, 1, bias=False, device=copies.device_type)
    for part in (probe, *getattr(model, "blocks", ()), model):
        fully_shard(part, mesh=copies, shard_placement_fn=placement, **options)
        if hasattr(part, "set_force_sum_reduction_for_comms"):  # some gloo adds where it is to average
            part.set_force_sum_reduction_for_comms(True)
    with contextlib.suppress(RuntimeError):  # other gloo will not even try
        probe(torch.ones(1, 1, device=copies.device_type)).sum().backward()
    slope: Any = probe.weight.grad
    if slope is None or slope.full_tensor().item() != 1.0:
        raise CourseError("this torch cannot average gradients in shards here; install a newer one, or set shard=none")
    return model


def cut_tokens(model: Any, group: dist.ProcessGroup) -> None:
    """From the first block to the head this rank has its tokens only, and their attention goes around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    sizes = [len(part) for part in torch.arange(model.position_1TD.shape[1]).tensor_split(n)]
    model.blocks[0].register_forward_pre_hook(lambda _, args: (args[0].tensor_split(n, 1)[me],))
    for block in model.blocks:
        block.attention.attend = functools.partial(_attend_around, sizes, group)
    model.head.register_forward_hook(lambda *seen: _all_tokens(sizes, group, seen[-1]))


def _attend_around(sizes: Sequence[int], group: dist.ProcessGroup, *qkv: Tensor) -> Tensor:
    """Ring attention, in float32 also where autocast has made 16 bits: its sums are merged again and again."""
    with torch.autocast(qkv[0].device.type, enabled=False):
        return RingAttention.apply(*(x.to(torch.promote_types(x.dtype, torch.float32)) for x in qkv), sizes, group)


def _all_tokens(sizes: Sequence[int], group: dist.ProcessGroup, x_BTD: Tensor) -> Tensor:
    """The tokens of all, which travel in pieces as long as the longest; backward, the sum of all ranks' slopes.

    Each rank has the loss of all tokens: that sum is n times too large, so the mean that DDP takes is the sum it needs.
    """
    whole_BTD = GatherTokens.apply(F.pad(x_BTD, (0, 0, 0, max(sizes) - x_BTD.shape[1])), group)
    pieces = zip(whole_BTD.split(max(sizes), 1), sizes, strict=True)
    return torch.cat([piece_BTD[:, :size] for piece_BTD, size in pieces], 1)
