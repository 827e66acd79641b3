"""The data of chapter 03: the same two years in several layouts.

The input is a preset and the names of layouts. The output is the training split in each layout.
"""

import dataclasses
from collections.abc import Iterable

from dltutorial.config import Preset
from dltutorial.data import convert, formats, store, weather
from dltutorial.data.store import Split


def sizes(preset: Preset) -> Preset:
    """Return a preset with two years of few snapshots.

    Each snapshot is so large that most of the time is spent on moving its bytes, and not on calling functions.
    """
    return dataclasses.replace(
        preset,
        n_lat=max(128, preset.n_lat),
        n_lon=max(256, preset.n_lon),
        years=(2, 0, 0),
        snapshots=24,
    )


def prepare(preset: Preset, layouts: Iterable[str] = formats.LAYOUTS) -> dict[str, Split]:
    """Return the training split of the measurements in each layout. A layout that does not exist yet is made."""
    source = weather.ensure(sizes(preset))
    splits = {}
    for name in layouts:
        folder = convert.convert(source, name)
        splits[name] = store.open_split(folder)
    return splits
