"""Write the training years of a data set in another layout: other chunks and compression, NumPy arrays, or Zarr.

In: a folder in the layout of ``store``, and the name of a ``Layout``. Out: another such folder with the same numbers.
"""

import shutil
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial import paths
from dltutorial.data import formats, store, writing
from dltutorial.data.formats import LAYOUTS, Layout

BLOCK = 16  # snapshots that are copied at a time, if the library chooses the chunks


def convert(source: Path, layout_name: str) -> Path:
    """Write the training years of a data set in another layout, unless this was done before.

    Args:
        source: a data set in any layout.
        layout_name: the new layout, one of ``LAYOUTS``.

    Returns:
        The new folder, which is among the data and named after the source and the layout.

    Raises:
        DataError: The source cannot be read or holds NaN, or the new folder cannot be written.
        CourseError: This is a login node.
    """
    folder = paths.data_dir() / f"{source.name}-train-{layout_name}"
    if folder.exists():
        return folder
    layout = LAYOUTS[layout_name]
    with writing.building(folder) as temporary:
        for file in tqdm(store.year_files(source, "train"), desc=layout_name, unit="year", delay=2):
            copy_year(file, temporary / "train" / f"{file.stem}{layout.suffix}", layout)
        shutil.copytree(source / "stats", temporary / "stats")
    return folder


def copy_year(source: Path, target: Path, layout: Layout) -> None:
    """Write one year in another layout. It reads one block at a time, so that each new chunk is written once."""
    block = layout.chunk if isinstance(layout.chunk, int) else BLOCK
    with (
        formats.open_year(source) as year,
        writing.year_writer(target, len(year), year.shape, layout) as append,
    ):
        for first in range(0, len(year), block):
            append(year.read(first, min(block, len(year) - first)))
