"""Bring a data set from a shared file system to the disk of this node, once, before training reads it every epoch.

In: a data folder, a place on the node's own disk. Out: the folder of the copy. Several ranks of a node call it at the
same time: one copies, the others wait. A copy takes its name only when it is whole, so a killed job, or a full disk,
leaves nothing that could be taken for data.
"""

import re
import shutil
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial.data import writing
from dltutorial.errors import DataError

_ZARR_2 = (".zarray", ".zattrs", ".zgroup", ".zmetadata")  # hidden, yet data, in the second version of Zarr


def stage(source: Path, place: Path, *, deadline_s: float = 3600.0, progress: bool = True) -> Path:
    """Copy a data folder below ``place``, unless a whole copy is there, and return the copy's folder.

    Args:
        source: the data set, with all its files.
        place: a folder on the node's own disk.
        deadline_s: how long to wait for another rank that is copying.
        progress: show a bar.

    Raises:
        DataError: no source; too little room; the copy cannot be written; another rank holds it too long.
    """
    source, place = Path(source).resolve(), Path(place)
    target, files = place / source.name, _sizes(source)
    if not files:
        what = f"{source} holds no file" if source.is_dir() else f"no data folder {source}"
        raise DataError(f"{what}; give the folder of a data set")
    if source in (target.resolve(), *target.resolve().parents):
        raise DataError(f"{place} holds {source} itself, so that is no place for its copy; choose another place")
    with writing.locked(place / f".staging-{source.name}", progress, deadline_s):
        if not target.exists():
            for left in place.iterdir():  # copied by half; the lock is ours, so whoever wrote it is gone
                if re.fullmatch(rf"\.{re.escape(target.name)}\.\d+\.partial", left.name):
                    shutil.rmtree(left, ignore_errors=True)
            writing.check_space(place, int(1.01 * sum(files.values())))
            with writing.refusals(target), writing.atomic_folder(target) as temporary:
                for name in tqdm(files, desc="staging", unit="file", delay=2, disable=not progress):
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source / name, temporary / name)
        if _sizes(target) != files:
            raise DataError(f"{target} is no whole copy of {source} as it is now; delete it and stage again")
    return target


def _sizes(folder: Path) -> dict[str, int]:
    """Every file of a data set with its size; what is hidden or half written is none of it."""
    found = {}
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and not any(part.startswith(".") and part not in _ZARR_2 for part in parts):
            found[str(file.relative_to(folder))] = file.stat().st_size
    return found
