"""The same data set in another layout on disk: HDF5 with chosen chunks and compression, NumPy arrays, Zarr.

In: a folder that ``store`` can open, a ``Layout``. Out: another such folder with the same numbers. Years are whole or
not there; an interrupted run is taken up where it stopped; ``dataset.json`` comes last.

Legend: T snapshots.
"""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial import node, paths
from dltutorial.data import formats, layouts, store, writing
from dltutorial.data.layouts import Layout
from dltutorial.errors import CourseError, DataError, RecipeError

_LARGEST_CHUNK_BYTES = 2**32 - 1  # HDF5's own limit


def convert(
    source: Path,
    layout: Layout | str,
    out: Path | None = None,
    *,
    splits: tuple[str, ...] = store.SPLITS,
    years: int | None = None,
    progress: bool = True,
) -> Path:
    """Write a data set in another layout, unless it is there, and return its folder.

    Args:
        source: a data set in any layout.
        layout: or its name.
        out: default: a folder among the data, named after the source and the layout.
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
    jobs = _jobs(source, splits, years)
    for file, _ in jobs:
        _check_chunks(layout, file)
    folder = Path(out) if out is not None else paths.data_dir() / _name(source, layout, splits, years)
    about = _about(source, layout, jobs)
    if (folder / "dataset.json").exists() and _is_whole(folder, about, jobs, layout):
        return folder  # this look needs no lock, and no right to write
    node.refuse_on_login("converting data")
    _check_folder(folder)
    with writing.locked(folder, progress):
        writing.clear_partial(folder)
        if not _is_whole(folder, about, jobs, layout):  # again: another process may have been quicker
            _write(source, folder, layout, jobs, about, progress)
    return folder


def _jobs(source: Path, splits: tuple[str, ...], years: int | None) -> list[tuple[Path, str]]:
    """The source's years that are wanted, each with its split."""
    wanted = [split for split in splits if split != "test" or (source / split).is_dir()]
    return [(file, split) for split in wanted for file in store.year_files(source, split)[:years]]


def _name(source: Path, layout: Layout, splits: tuple[str, ...], years: int | None) -> str:
    part = "" if splits == store.SPLITS else "-" + "-".join(splits)
    return f"{source.name}{part}{f'-{years}y' if years else ''}-{layout.name}"


def _about(source: Path, layout: Layout, jobs: list[tuple[Path, str]]) -> dict:
    """What ``dataset.json`` will say; ``converted`` tells this conversion from any other."""
    said = store.about(source)
    files = [[split, file.stem, *store.file_shape(file)] for file, split in jobs]
    origin = {"layout": layout.name, "digest": said.pop("digest", None), "files": files}
    said.pop("plan", None)
    return said | {"converted": origin}


def _check_chunks(layout: Layout, file: Path) -> None:
    """Whether a year can be cut in such chunks.

    Raises:
        DataError: it cannot.
    """
    T, *shape = store.file_shape(file)
    if not isinstance(layout.chunk, int):
        return
    if layout.chunk > T:
        raise DataError(f"{file} has {T} snapshots, so no chunk can hold {layout.chunk}; take 1 to {T}")
    n_bytes = 4 * layout.chunk * math.prod(shape)
    if n_bytes > _LARGEST_CHUNK_BYTES:
        raise DataError(
            f"{file}: a chunk of {layout.chunk} snapshots has {n_bytes} bytes, the most is 4 GiB; take fewer"
        )


def _target(folder: Path, file: Path, split: str, layout: Layout) -> Path:
    return folder / split / f"{file.stem}{layout.suffix}"


def _is_whole(folder: Path, about: dict, jobs: list[tuple[Path, str]], layout: Layout) -> bool:
    """Whether this very conversion is there already, all of it.

    Raises:
        DataError: something else is in the way.
    """
    marks = [json.loads(json.dumps(about["converted"])), None]
    begun, ended = _begun(folder), store.about(folder)
    if (begun not in marks) or (ended and ended.get("converted") not in marks[:1]):
        raise DataError(f"{folder} holds another data set, which is not overwritten; choose another folder")
    if begun is None and (ended or _holds_something(folder)):
        raise DataError(f"{folder} is not empty and no conversion began it; choose another folder")
    return bool(ended) and all(_is_done(_target(folder, file, split, layout), file) for file, split in jobs)


def _check_folder(folder: Path) -> None:
    """Refuse, before a lock is put there, what no conversion can have begun.

    Raises:
        DataError: it is a file, or a folder of something else.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file, not a folder; choose another")
    foreign = not (folder / ".lock").exists() and _holds_something(folder)  # a conversion locks before it writes
    if foreign and _begun(folder) is None:
        raise DataError(f"{folder} is not empty and no conversion began it; choose another folder")


def _holds_something(folder: Path) -> bool:
    """Whether there is more in a folder than a lock, and a file that a killed process had not finished."""
    return any(place.name != ".lock" and not place.match(".*.partial") for place in folder.glob("*"))


def _begun(folder: Path) -> dict | None:
    """What ``convert.json``, the first file of a conversion, says; None where there is none.

    Raises:
        DataError: it is damaged.
    """
    try:
        return json.loads((folder / "convert.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'convert.json'} is not readable JSON; delete {folder} and convert again") from error


def _is_done(target: Path, source: Path) -> bool:
    """A year that has its name is whole; only its shape is looked at.

    Raises:
        DataError: it was damaged since, or is another year.
    """
    if not target.exists():
        return False
    if store.file_shape(target) != store.file_shape(source):
        raise DataError(
            f"{target} has shape {store.file_shape(target)}, not that of {source}; delete it, convert again"
        )
    return True


def _write(
    source: Path, folder: Path, layout: Layout, jobs: list[tuple[Path, str]], about: dict, progress: bool
) -> None:
    """Write what is missing, ``dataset.json`` last."""
    todo = [(file, _target(folder, file, split, layout)) for file, split in jobs]
    todo = [(file, target) for file, target in todo if not _is_done(target, file)]
    shapes = [store.file_shape(file) for file, _ in todo]
    writing.check_space(folder, int(1.05 * 4 * sum(map(math.prod, shapes))))
    with _refusals(folder):
        paths.write_text(folder / "convert.json", json.dumps(about["converted"], indent=1) + "\n")
        total = sum(shape[0] for shape in shapes)
        with tqdm(desc=layout.name, unit="snapshot", total=total, delay=2, disable=not progress) as bar:
            for file, target in todo:
                with formats.open_year(file) as year:
                    layouts.write_year(year, target, layout, bar.update)
        for file in (source / "stats").glob("*.npy"):
            with paths.atomic(folder / "stats" / file.name) as temporary:
                shutil.copyfile(file, temporary)
        paths.write_text(folder / "dataset.json", json.dumps(about, indent=1) + "\n")


@contextlib.contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """What a disk, or a library on its behalf, says when it takes no more, as one line.

    Raises:
        DataError: instead.
    """
    try:
        yield
    except DataError:
        raise
    except CourseError as error:
        raise DataError(str(error)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(
            f"cannot write {folder}: {formats.first_line(error)}; make room or choose another folder, then run again"
        ) from error
