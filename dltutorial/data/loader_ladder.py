"""The data of chapter 03: the same two years in several layouts.

In: a preset, and names of layouts. Out: the training split in each layout.
"""

import dataclasses
from collections.abc import Iterable

from dltutorial.config import Preset
from dltutorial.data import convert, formats, store, weather
from dltutorial.data.store import Split


def sizes(preset: Preset) -> Preset:
    """Two years of few snapshots, each so large that moving bytes takes the time, and not calling functions."""
    return dataclasses.replace(
        preset,
        n_lat=max(128, preset.n_lat),
        n_lon=max(256, preset.n_lon),
        years=(2, 0, 0),
        snapshots=24,
    )


def prepare(preset: Preset, layouts: Iterable[str] = formats.LAYOUTS) -> dict[str, Split]:
    """The training split of the measurements in each layout; built if it is missing."""
    source = weather.ensure(sizes(preset))
    splits = {}
    for name in layouts:
        folder = convert.convert(source, name)
        splits[name] = store.open_split(folder)
    return splits
