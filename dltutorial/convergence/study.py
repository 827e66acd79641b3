"""Chapter 12's curve in one call: the survey, the sweep over batch sizes, the fit.

In: a preset's name, a seed that everything random comes from. Out: a ``Study``. Accuracy 90% is well below what the
network ends at on lenses (about 95%), so that every seed can get there; digits have their own targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dltutorial.convergence import curves, sweep
from dltutorial.convergence.curves import Fit
from dltutorial.convergence.sweep import Sweep
from dltutorial.data import surveys
from dltutorial.errors import RecipeError

_ALL = tuple(4 * 2**power for power in range(12))  # 4 … 8192
BATCH_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({
    "smoke": (8, 32, 64, 128, 256, 512, 2048), "laptop": _ALL, "gpu": _ALL, "cluster": _ALL,
})  # fmt: skip
_DIGITS = tuple(4 * 2**power for power in range(8))  # 4 … 512 of 997
TARGETS: Mapping[str, float] = MappingProxyType({"lenses": 0.90, "digits": 0.93})


@dataclass(frozen=True)
class Study:
    """What was measured, and the curve through it.

    Attributes:
        sweep: points with learning rates, updates (P, S) and remarks.
        fit: S_min, B_crit and their uncertainty.
    """

    sweep: Sweep
    fit: Fit


def measure(
    preset: str = "smoke", seed: int = 0, *, data: str = "lenses", optimizer: str = "sgd", progress: bool = True
) -> Study:
    """Simulate the survey unless it is there, tune and measure every batch size of the preset, fit the curve.

    Args:
        preset: its name; it decides the batch sizes.
        seed: of the data and of all replicas; other seeds share nothing.
        data: "lenses" or "digits".
        optimizer: "sgd", "adam" or "adamw".
        progress: show a bar.

    Raises:
        RecipeError: no such preset, data or optimizer; too few batch sizes got to the target; no knee.
    """
    for kind, name, there in (("preset", preset, BATCH_SIZES), ("data", data, TARGETS)):
        if name not in there:
            raise RecipeError(f"{kind} {name!r} is not one of {', '.join(there)}; choose one of these")
    survey = surveys.lenses(seed, progress=progress) if data == "lenses" else surveys.digits(seed)
    sizes = BATCH_SIZES[preset] if data == "lenses" else _DIGITS
    first = 1000 * seed
    found = sweep.sweep(
        survey,
        sizes,
        TARGETS[data],
        optimizer=optimizer,
        tuning_seeds=range(first, first + 3),
        seeds=range(first + 100, first + 105),
        progress=progress,
    )
    return Study(found, curves.fit(found.batch_sizes, found.steps_PS, seed=seed))
