"""The gradient noise scale: how far a batch's gradient strays, and so which batch size is worth its samples.

In: squared lengths of gradients of a small and of a large batch. Out: |G|², the squared length of the exact gradient,
tr(Σ), the variance of one sample's gradient summed over all weights, and B_simple = tr(Σ) / |G|². The gradient of a
batch of B samples has E|g|² = |G|² + tr(Σ)/B: two batch sizes give two equations, and their solution is unbiased.
Up to B_simple, twice the batch nearly halves the steps; far beyond, it saves next to nothing. McCandlish et al. 2018
(arXiv:1812.06162), appendix A.

**The rule of averaging, fixed beforehand and kept to in all the course:** tr(Σ) and |G|² are averaged over steps, each
by itself (plain mean over a few steps, :class:`Running` along a training run); the ratio is taken last. A mean of the
steps' ratios is not B_simple: |G|² of a single step is near zero or below it at times. Nothing is clipped: where the
*averaged* |G|² or tr(Σ) is not positive, the noise scale is NaN, "cannot be told from these steps". A whole run, along
which the scale itself changes manifold, is summed up by the median of such ratios at moments spread evenly over it.

Samples drawn without replacement from a finite set do no harm: |G|² is then that of the source the set was drawn from.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.convergence.objective import Loss, Objective
from dltutorial.errors import CourseError

#: A number, or an array of numbers.
Number = TypeVar("Number", float, np.ndarray, Tensor)


def two_batches(small_square: Number, large_square: Number, small: int, large: int) -> tuple[Number, Number]:
    """Unbiased |G|² and tr(Σ) from the gradients of two batches of the *mean* loss, at the same weights.

    Args:
        small_square: |g|² of the small batch, or its mean over several; a number, an array or a tensor of them.
        large_square: |g|² of the large batch; it may hold the small ones.
        small, large: samples of the two batches.

    Returns:
        (|G|², tr(Σ)); either may be negative in a single step.

    Raises:
        CourseError: the batches are not a small and a large one.
    """
    if not 1 <= small < large:
        raise CourseError(f"batches of {small} and {large} samples; the first must be smaller, and hold at least one")
    squared = (large * large_square - small * small_square) / (large - small)
    trace = (small_square - large_square) / (1 / small - 1 / large)
    return squared, trace


def scale(squared: float, trace: float) -> float:
    """B_simple in samples; NaN where one of the two is not positive, for then it cannot be told."""
    return trace / squared if squared > 0 and trace > 0 else float("nan")


def squared_length(gradients: Iterable[Tensor]) -> Tensor:
    """The squared length of a gradient that comes in parts, as a float64 scalar on their device.

    Lengths are added up in float32 or better, also where the parts have 16 bits, whose range the squares would leave.
    """
    lengths = [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    return torch.stack([length.double().square() for length in lengths]).sum()


@dataclass(frozen=True)
class Estimates:
    """|G|² and tr(Σ), one of each per step, in arrays of the same length."""

    squared: np.ndarray
    trace: np.ndarray

    @property
    def scale(self) -> float:
        """B_simple by the rule: means first, the ratio last."""
        return scale(float(self.squared.mean()), float(self.trace.mean()))

    @property
    def raw(self) -> np.ndarray:
        """Each step's own ratio, NaN where there is none: what not to average."""
        return np.array([scale(*pair) for pair in zip(self.squared, self.trace, strict=True)])

    def spread(self, share: float = 0.9, resamples: int = 500, seed: int = 0) -> tuple[float, float]:
        """Between which values ``scale`` lies in ``share`` of samples of these steps, drawn with replacement.

        Bootstrap, Efron 1979, doi:10.1214/aos/1176344552. It takes steps for independent: those of one training run
        resemble each other, so its spread is a lower bound. Resamples that cannot tell count as infinite: the upper
        end is infinite if many of them cannot.
        """
        picks = np.random.default_rng(seed).integers(len(self.squared), size=(resamples, len(self.squared)))
        means = zip(self.squared[picks].mean(1), self.trace[picks].mean(1), strict=True)
        scales = np.nan_to_num([scale(*pair) for pair in means], nan=np.inf)
        low, high = np.quantile(scales, [(1 - share) / 2, (1 + share) / 2], method="nearest")
        return float(low), float(high)


class Running:
    """Exponential means of |G|² and tr(Σ) along a training run, right from the first step on.

    Means that start at zero are too small by 1 − decayⁿ after n steps: both alike, so their ratio is right. The numbers
    may be tensors on a device: they stay there, and nothing waits for them until ``scale`` is asked for.
    """

    def __init__(self, decay: float = 0.95) -> None:
        """Begin with no step; ``decay`` is the past's weight in each step: 0.95 remembers some 20 steps."""
        self.decay = decay
        self._squared: float | Tensor = 0.0
        self._trace: float | Tensor = 0.0

    def update(self, squared: float | Tensor, trace: float | Tensor) -> None:
        """Take in one step's estimates."""
        self._squared = self.decay * self._squared + (1 - self.decay) * squared
        self._trace = self.decay * self._trace + (1 - self.decay) * trace

    @property
    def scale(self) -> float:
        """B_simple so far; NaN before the first step."""
        return scale(float(self._squared), float(self._trace))


def half_batches(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = F.cross_entropy) -> tuple[Tensor, Tensor]:
    """Leave a batch's mean gradient in the model, at no further cost: |g|² of its halves (their mean) and of the whole.

    The batch has an even number of samples ``x`` and targets ``y``; ``loss`` is the mean over them. A batch that grows
    with this estimate: McCandlish et al. 2018, section 5; Byrd et al. 2012 (doi:10.1007/s10107-012-0572-5).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [
        torch.autograd.grad(loss(model(x_half), y_half), parameters)
        for x_half, y_half in zip(x.chunk(2), y.chunk(2), strict=True)
    ]
    for parameter, one, other in zip(parameters, *gradients, strict=True):
        parameter.grad = (one + other) / 2
    small = (squared_length(gradients[0]) + squared_length(gradients[1])) / 2
    return small, squared_length(p.grad for p in parameters if p.grad is not None)


def exact(objective: Objective) -> tuple[float, float]:
    """|G|² and tr(Σ) from every sample's own gradient: the batches are 1 and all, two or more. Dear, for reference."""
    whole = float(objective.gradient().double().square().sum())
    return two_batches(float(objective.sample_squares().double().mean()), whole, 1, len(objective.x))


def measure(objective: Objective, small: int, large: int, draws: int, seed: int = 0) -> Estimates:
    """Estimate at fixed weights, ``draws`` times, from a fresh large batch whose small batches fill it.

    Raises:
        CourseError: the large batch is larger than the data, or no multiple of the small one.
    """
    n_samples = len(objective.x)
    if large > n_samples or large % small:
        sizes = f"a large batch of {large} in small ones of {small} from {n_samples} samples"
        raise CourseError(f"{sizes} does not work out; choose a multiple of the small one, no larger than the data")
    generator, pairs = torch.Generator().manual_seed(seed), list[tuple[float, float]]()
    for _ in range(draws):
        gradients_MN = objective.batch_gradients(torch.randperm(n_samples, generator=generator)[:large], small)
        of_small, of_large = gradients_MN.square().sum(1).mean(), gradients_MN.mean(0).square().sum()
        pairs.append(two_batches(float(of_small), float(of_large), small, large))
    squared, trace = np.array(pairs).T
    return Estimates(squared, trace)


def mean_square(objective: Objective, size: int, draws: int, seed: int = 0) -> float:
    """The mean |g|² of ``draws`` batches of one size, drawn with replacement: |G|² and noise together."""
    generator = torch.Generator().manual_seed(seed)
    pick_B = torch.randint(len(objective.x), (draws * size,), generator=generator)
    return float(objective.batch_gradients(pick_B, size).square().sum(1).mean())
