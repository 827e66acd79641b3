"""The same data set in another layout on disk: HDF5 with chosen chunks and compression, NumPy arrays, Zarr.

In: a folder that ``store`` can open, a ``Layout``. Out: another such folder with the same numbers. Years are whole or
not there; an interrupted run is taken up where it stopped, if its source is still the same. ``convert.json`` comes
first, ``dataset.json`` last.
"""

import hashlib
import json
import math
import os
import shutil
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial import node, paths
from dltutorial.data import formats, store, writing
from dltutorial.data.formats import Layout
from dltutorial.errors import DataError, RecipeError


def convert(
    source: Path, layout: Layout | str, out: Path | None = None,
    *, splits: tuple[str, ...] = store.SPLITS, years: int | None = None, progress: bool = True,
) -> Path:  # fmt: skip
    """Write a data set in another layout, unless it is there, and return its folder.

    Args:
        source: a data set in any layout.
        layout: or its name.
        out: default: a folder among the data, named after the source, the layout, and which source of that name it is.
        splits: which parts; those that the source lacks are an error, but for ``test``.
        years: of each split, the first so many; default all.
        progress: show a bar.

    Raises:
        DataError: the source is damaged; the folder holds something else; too little space; chunks that cannot be.
        RecipeError: a layout or a number of years that cannot be.
        CourseError: it is not there yet, and this is a login node.
    """
    layout, source = Layout.of(layout) if isinstance(layout, str) else layout, Path(source)
    if years is not None and years < 1:
        raise RecipeError(f"{years} years cannot be converted; take at least 1")
    part = "" if splits == store.SPLITS else "-" + "-".join(splits)
    with formats.blaming(source):
        there = [split for split in splits if split != "test" or (source / split).is_dir()]
    files = [file for split in there for file in store.year_files(source, split)[:years]]
    shape_of = {file: store.file_shape(file) for file in files}
    store.require_alike(shape_of)
    statistics = list((source / "stats").glob("*.npy"))
    about = store.about(source)
    identity = _identity(source, about, [*files, *statistics])
    name = f"{source.absolute().name}{part}{f'-{years}y' if years else ''}-{layout.name}-{identity}"
    folder = Path(out) if out is not None else paths.data_dir() / name
    if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(source)):
        raise DataError(f"{folder} lies in the data set itself; choose another folder with --out")
    targets = {folder / file.parent.name / f"{file.stem}{layout.suffix}": file for file in files}
    shapes = {target: shape_of[file] for target, file in targets.items()}
    for target, shape in shapes.items():
        if isinstance(layout.chunk, int) and layout.chunk > shape[0]:
            why = f"has {shape[0]} snapshots, so no chunk can hold {layout.chunk}; take 1 to {shape[0]}"
            raise DataError(f"{targets[target]} {why}")
    years_TCHW = [[target.parent.name, target.stem, *shape] for target, shape in shapes.items()]
    origin = {"layout": layout.name, "digest": about.pop("digest", None), "source": identity, "files": years_TCHW}
    about.pop("plan", None)
    if _is_whole(folder, origin, shapes):
        return folder  # this look needs no lock, and no right to write
    node.refuse_on_login("converting data")
    with writing.locked(folder, progress):
        writing.clear_partial(folder)
        if not _is_whole(folder, origin, shapes):  # again: another process may have been quicker
            with writing.refusals(folder):
                todo = {target: file for target, file in targets.items() if not target.exists()}
                writing.check_space(folder, int(1.05 * 4 * sum(math.prod(shapes[target]) for target in todo)))
                paths.write_text(folder / "convert.json", json.dumps(origin, indent=1) + "\n")
                _write_years(todo, layout, progress)
                for file in (file for file in statistics if not (folder / "stats" / file.name).exists()):
                    with paths.atomic(folder / "stats" / file.name) as temporary:
                        shutil.copyfile(file, temporary)
                if _identity(source, store.about(source), [*files, *statistics]) != identity:
                    raise DataError(f"{source} was changed meanwhile; convert into another folder with --out")
                if not (file := folder / "dataset.json").exists():
                    paths.write_text(file, json.dumps(about | {"converted": origin}, indent=1) + "\n")
    return folder


def _identity(source: Path, about: dict, files: list[Path]) -> str:
    """Eight characters that differ between sources: where it is, what it says, each file's size and last change."""
    parts = sorted(part for file in files for part in (file, *file.rglob("*")))
    marks = [(str(part.relative_to(source)), part.stat().st_size, part.stat().st_mtime_ns) for part in parts]
    return hashlib.sha256(repr((str(source.resolve()), about, marks)).encode()).hexdigest()[:8]


def _is_whole(folder: Path, origin: dict, shapes: dict[Path, tuple[int, int, int, int]]) -> bool:
    """Whether this very conversion is there already, all of it. Of years only the shape is looked at.

    Raises:
        DataError: something else is in the way, or a year was damaged since.
    """
    with formats.blaming(folder):
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder} is a file, not a folder; choose another")
    # Looked for before convert.json: another process may begin between the two looks.
    taken = any(place.name != ".lock" and not place.match(".*.partial") for place in folder.glob("*"))
    begun = store.read_json(folder / "convert.json")
    if begun is None and taken:
        raise DataError(f"{folder} is not empty and no conversion began it; choose another folder")
    if begun not in (None, json.loads(json.dumps(origin))):
        why = f"{folder} holds another data set, or this one before it was changed, and is not overwritten"
        raise DataError(f"{why}; choose another folder with --out")
    for target, shape in shapes.items():
        if target.exists() and store.file_shape(target) != shape:
            why = f"has shape {store.file_shape(target)}, not {shape}"
            raise DataError(f"{target} {why}; convert into another folder with --out")
    return (folder / "dataset.json").exists() and all(target.exists() for target in shapes)


def _write_years(todo: dict[Path, Path], layout: Layout, progress: bool) -> None:
    """Each target from its source, in pieces as deep as a chunk, so that each chunk is compressed once."""
    depth = layout.chunk if isinstance(layout.chunk, int) else 16
    total = sum(store.file_shape(file)[0] for file in todo.values())
    with tqdm(desc=layout.name, unit="snapshot", total=total, delay=2, disable=not progress) as bar:
        for target, file in todo.items():
            with (
                formats.open_year(file) as year,
                writing.year_writer(target, len(year), year.shape, layout=layout) as append,
            ):
                for first in range(0, len(year), depth):
                    block_TCHW = store.whole(file, first, year.snapshots(first, min(depth, len(year) - first)))
                    append(block_TCHW)
                    bar.update(len(block_TCHW))
