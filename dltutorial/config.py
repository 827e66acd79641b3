"""A preset has the sizes of data, model and training for one kind of machine.

Input: the name of a preset, or ``auto``.
Output: a frozen ``Preset``.

Importing this module does not load torch.
"""

import dataclasses
import os
from dataclasses import dataclass

from dltutorial.errors import RecipeError


@dataclass(frozen=True)
class Preset:
    """Sizes for one kind of machine.

    Attributes:
        name: The name on a command line.
        machine: The machines that it is for, in a few words.
        n_lat, n_lon: The rows and columns of a field.
        n_layers: The layers of the simulated atmosphere. Each layer has five channels.
        years: The numbers of (train, valid, test) files. Each file is one independently simulated year.
        snapshots: The stored time steps in a year.
        patch: The edge of the square of grid points that becomes one token of the vision transformer.
        dim, depth, heads: The width of a token, the number of blocks, and the number of attention heads.
        global_batch_size: The samples in one step, over all ranks.
        steps: The training steps of a run. Chapter 01 makes about two fifths of them.
        learning_rate: The peak learning rate of AdamW.
    """

    name: str
    machine: str
    n_lat: int
    n_lon: int
    n_layers: int
    years: tuple[int, int, int]
    snapshots: int
    patch: int
    dim: int
    depth: int
    heads: int
    global_batch_size: int
    steps: int
    learning_rate: float

    @property
    def n_channels(self) -> int:
        """The number of channels. Each layer has five (u, v, vorticity, stream function, tracer)."""
        return 5 * self.n_layers

    @property
    def n_tokens(self) -> int:
        """The number of patches of one sample."""
        return (self.n_lat // self.patch) * (self.n_lon // self.patch)


_SMOKE = Preset(
    name="smoke", machine="CI or a small laptop: about a minute a notebook",
    n_lat=64, n_lon=128, n_layers=1, years=(6, 1, 1), snapshots=42,
    patch=8, dim=128, depth=4, heads=4,
    global_batch_size=16, steps=160, learning_rate=3e-3,
)  # fmt: skip
_LAPTOP = dataclasses.replace(
    _SMOKE, name="laptop", machine="a laptop's CPU: minutes a notebook",
    n_layers=2, years=(14, 2, 2), dim=192, depth=6, heads=6, steps=1200, learning_rate=1e-3,
)  # fmt: skip
_GPU = Preset(
    name="gpu", machine="one accelerator: the size of the published vision transformer",
    n_lat=360, n_lon=720, n_layers=4, years=(8, 1, 1), snapshots=64,
    patch=8, dim=384, depth=12, heads=8,
    global_batch_size=16, steps=1000, learning_rate=5e-4,
)  # fmt: skip
_CLUSTER = dataclasses.replace(
    _GPU, name="cluster", machine="several accelerators", years=(32, 2, 2), global_batch_size=64, learning_rate=1e-3
)
PRESETS = {p.name: p for p in (_SMOKE, _LAPTOP, _GPU, _CLUSTER)}


def preset(name: str = "auto") -> Preset:
    """Look up a preset.

    Args:
        name: A key of ``PRESETS``, or ``auto``. This means the name in ``DLTUTORIAL_PRESET`` if this variable is set,
            and otherwise the preset that fits this machine.

    With ``DLTUTORIAL_YEARS=2,1,1`` in the environment, the data set has these numbers of (train, valid, test) years
    instead of those of the preset. A small data set is simulated in a shorter time.

    Returns:
        The preset.

    Raises:
        RecipeError: There is no preset of this name.
    """
    source = "preset"
    if name == "auto":
        source = "DLTUTORIAL_PRESET"
        name = os.environ.get(source) or "auto"
    if name == "auto":
        from dltutorial import machine

        name = machine.suggest_preset()
    if name not in PRESETS:
        raise RecipeError(f"{source} {name!r} is not one of {', '.join(PRESETS)}, auto; choose one of these")
    years = os.environ.get("DLTUTORIAL_YEARS")
    if years:
        train, valid, test = (int(number) for number in years.split(","))
        return dataclasses.replace(PRESETS[name], years=(train, valid, test))
    return PRESETS[name]
