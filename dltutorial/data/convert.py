"""Write a data set in another layout: HDF5 with other chunks and compression, NumPy arrays, or Zarr.

In: a folder in the layout of ``store``, and a ``Layout``. Out: another such folder with the same numbers.
"""

import json
import shutil
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial import node, paths
from dltutorial.data import formats, store, writing
from dltutorial.data.formats import Layout

BLOCK = 16  # snapshots that are copied at a time, if the library chooses the chunks


def convert(
    source: Path,
    layout: Layout | str,
    out: Path | None = None,
    *,
    splits: tuple[str, ...] = store.SPLITS,
    progress: bool = True,
) -> Path:
    """Write a data set in another layout, unless this was done before, and return the new folder.

    Args:
        source: a data set in any layout.
        layout: the new layout, or its name.
        out: the new folder. The default is a folder among the data, named after the source and the layout.
        splits: the parts to convert. ``test`` is left out if the source has no such part.
        progress: show a progress bar.

    Raises:
        DataError: The source cannot be read, holds NaN, or has years shorter than a chunk; or the new folder cannot
            be written or holds something else.
        RecipeError: There is no such layout.
        CourseError: This is a login node.
    """
    source = Path(source)
    if isinstance(layout, str):
        layout = Layout.of(layout)
    folder = Path(out) if out is not None else _default_folder(source, layout, splits)
    about = store.about(source)
    origin = {
        "source": about.pop("digest", str(source.resolve())),
        "layout": layout.name,
        "splits": list(splits),
    }
    if writing.is_built(folder, "converted", origin):
        return folder
    node.refuse_on_login("converting data")
    files: list[Path] = []
    for split in splits:
        if split != "test" or (source / split).is_dir():
            files.extend(store.year_shapes(source, split))
    with writing.building(folder) as temporary:
        for file in tqdm(files, desc=layout.name, unit="year", delay=2, disable=not progress):
            target = temporary / file.parent.name / f"{file.stem}{layout.suffix}"
            copy_year(file, target, layout)
        shutil.copytree(source / "stats", temporary / "stats")
        about.pop("plan", None)
        paths.write_text(temporary / "dataset.json", json.dumps(about | {"converted": origin}, indent=1) + "\n")
    return folder


def _default_folder(source: Path, layout: Layout, splits: tuple[str, ...]) -> Path:
    """A folder among the data, whose name says the source, the layout, and the parts unless they are all there are."""
    names = [source.absolute().name]
    if splits != store.SPLITS:
        names.extend(splits)
    return paths.data_dir() / "-".join([*names, layout.name])


def copy_year(source: Path, target: Path, layout: Layout) -> None:
    """Write one year in another layout. It reads one block at a time, so that each new chunk is written once."""
    block = layout.chunk if isinstance(layout.chunk, int) else BLOCK
    with (
        formats.open_year(source) as year,
        writing.year_writer(target, len(year), year.shape, layout) as append,
    ):
        for first in range(0, len(year), block):
            append(year.read(first, min(block, len(year) - first)))
