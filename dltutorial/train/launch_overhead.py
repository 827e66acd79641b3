"""Launches × overhead: the time of a step that consists of nothing but starting operations.

In: small networks that differ only in how many operations a step has. Out: a line, seconds against operations, for
steps run as they are and for steps that are recorded and replayed (a CUDA graph on a GPU, a tape elsewhere). Its slope
is what one operation costs before it does any work; the difference of the slopes is what recording saves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dltutorial import machine
from dltutorial.config import LoopRecipe
from dltutorial.models.tiny import NarrowMLP
from dltutorial.profile.timing import alternate
from dltutorial.train.forecasting import squared_error
from dltutorial.train.graphs import WARMUP_STEPS, GraphedStep
from dltutorial.train.recorded_step import Tape
from dltutorial.train.step import make_optimizer, train_step

WINDOW = (5, 8, 8)  # channels, latitudes, longitudes that the narrow networks forecast


@dataclass(frozen=True)
class Line:
    """``fixed_s`` once a step, and ``per_operation_s`` for each of its operations."""

    fixed_s: float
    per_operation_s: float

    def step_s(self, n_operations: float) -> float:
        """The predicted time of a step."""
        return self.fixed_s + self.per_operation_s * n_operations

    def __sub__(self, other: "Line") -> "Line":
        """What the other way saves."""
        return Line(self.fixed_s - other.fixed_s, self.per_operation_s - other.per_operation_s)


@dataclass(frozen=True)
class Pair:
    """The same step twice, on two equal models and one batch.

    Attributes:
        n_operations: in one step, forward, backward and update.
        eager: runs it as written.
        graphed: replays it; captured already.
    """

    n_operations: int
    eager: Callable[[], Tensor]
    graphed: Callable[[], Tensor]


def pair(model: nn.Module, twin: nn.Module, batch: tuple[Tensor, Tensor]) -> Pair:
    """Both ways to step, ready to be timed, with the optimizer that capture needs: one kernel, its rate a tensor."""
    device = batch[0].device.type
    tape = Tape()
    eager = _step(model)
    graphed = GraphedStep(_step(twin), device, None if device == "cuda" else tape)
    for _ in range(WARMUP_STEPS + 1):
        graphed(*batch)
    n = len(tape) or count_operations(eager, batch)
    return Pair(n, lambda: eager(*batch), lambda: graphed(*batch))


def count_operations(step: Callable[..., Tensor], batch: tuple[Tensor, Tensor]) -> int:
    """How many operations a step has below autograd, views not counted: on a GPU each launches a kernel or several.

    The optimizer makes its averages in its first step, so one is made before the count.
    """
    step(*batch)
    tape = Tape()
    with tape.capture():
        step(*batch)
    return len(tape)


def narrow_pair(dim: int, depth: int, batch_size: int = 8, device: str | None = None) -> Pair:
    """A launch-bound pair: narrow networks of ``depth`` blocks on a random batch."""
    device = device or machine.device()
    x_BCHW = torch.randn(batch_size, *WINDOW, generator=torch.Generator().manual_seed(0)).to(device)
    models = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            models.append(NarrowMLP(WINDOW, dim, depth).to(device))
    return pair(models[0], models[1], (x_BCHW, x_BCHW.roll(1, -1)))


def overheads(
    dim: int, depths: Sequence[int] = (4, 10, 16), repeats: int = 11, device: str | None = None
) -> tuple[Line, Line]:
    """What an operation costs in an eager step and in a replayed one, from networks of several depths.

    Each depth gives a point of the lines. ``dim``, the width, is small, so that there is no work; of ``repeats``
    timings the quickest counts, since other work can only slow a step down.
    """
    pairs = [narrow_pair(dim, depth, device=device) for depth in depths]
    variants = {f"eager {n}": p.eager for n, p in enumerate(pairs)}
    variants |= {f"graphed {n}": p.graphed for n, p in enumerate(pairs)}
    found = alternate(variants, repeats=repeats, device=device)
    lines = []
    for kind in ("eager", "graphed"):
        best_s = [found[f"{kind} {n}"].best_s for n in range(len(pairs))]
        slope, start = np.polyfit([p.n_operations for p in pairs], best_s, 1)
        lines.append(Line(float(start), float(slope)))
    return lines[0], lines[1]


def replayed_step_s(eager_s: float, n_operations: int, lines: tuple[Line, Line], device: str) -> float:
    """Predict the replayed step of any model from its eager one.

    A CPU starts operations and works in turn: what recording saves comes off the time. A GPU works while the next
    operations are started: a step longer than its launches hides them, and gains nothing.
    """
    eager, replayed = (line.step_s(n_operations) for line in lines)
    if device == "cuda":
        return eager_s if eager_s > eager else replayed
    return max(eager_s - (eager - replayed), replayed)


def _step(model: nn.Module) -> Callable[..., Tensor]:
    optimizer = make_optimizer(model, LoopRecipe(cuda_graph=True, optimizer_impl="fused", learning_rate=1e-3))
    return lambda *batch: train_step(model, batch, squared_error, optimizer)
