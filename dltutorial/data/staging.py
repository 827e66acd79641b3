"""Bring a data set from a shared file system to the disk of this node, once, before training reads it every epoch.

In: a data folder, a place on the node's own disk. Out: the folder of the copy. Several ranks of a node call it at the
same time: one copies, the others wait. A copy takes its name only when it is whole, so a killed job, or a full disk,
leaves nothing that could be taken for data.
"""

import json
import os
import re
import shutil
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial import paths
from dltutorial.data import store, writing
from dltutorial.errors import DataError

_BLOCK = 8 << 20
_LIST = "staged.json"
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
    source = Path(source).resolve()
    files = _listing(source)
    target = Path(place) / source.name
    if source in (target.resolve(), *target.resolve().parents):
        raise DataError(f"{place} holds {source} itself, so that is no place for its copy; choose another place")
    with writing.locked(Path(place) / f".staging-{source.name}", progress, deadline_s):
        if _is_copy(target, files):
            return target
        for left in target.parent.iterdir():  # copied by half; the lock is ours, so whoever wrote it is gone
            if re.fullmatch(rf"\.{re.escape(target.name)}\.\d+\.partial", left.name):  # not that of era5.1 for era5
                shutil.rmtree(left, ignore_errors=True)
        writing.check_space(Path(place), int(1.01 * sum(files.values())))
        with writing.refusals(target), writing.atomic_folder(target) as temporary:
            _copy_all(source, temporary, files, progress)
    return target


def _listing(source: Path) -> dict[str, int]:
    """Every file of the data set with its size; what is hidden or half written is none of it.

    Raises:
        DataError: there is no such folder, or nothing in it.
    """
    found = {}
    for file in sorted(source.rglob("*")):
        parts = file.relative_to(source).parts
        if file.is_file() and not any(part.startswith(".") and part not in _ZARR_2 for part in parts):
            found[str(file.relative_to(source))] = file.stat().st_size
    if not found:
        what = f"{source} holds no file" if source.is_dir() else f"no data folder {source}"
        raise DataError(f"{what}; give the folder of a data set")
    return found


def _is_copy(target: Path, files: dict[str, int]) -> bool:
    """Whether the target is a whole copy of these files.

    Raises:
        DataError: it is something else.
    """
    if not target.exists():
        return False
    again = "delete it and stage again"
    listed = store.read_json(target / _LIST)
    if listed is None:
        raise DataError(f"{target} is there and no staged copy; choose another place, or {again}")
    if listed != files:
        raise DataError(f"{target} is a copy of other data, or of these before they changed; {again}")
    for name, size in files.items():
        if not (target / name).is_file() or (target / name).stat().st_size != size:
            raise DataError(f"{target / name} is missing or truncated; delete {target} and stage again")
    return True


def _copy_all(source: Path, target: Path, files: dict[str, int], progress: bool) -> None:
    with tqdm(desc="staging", unit="B", unit_scale=True, total=sum(files.values()), disable=not progress) as bar:
        for name, size in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            copied = 0
            with open(source / name, "rb") as reading, open(target / name, "wb") as copy:
                while block := reading.read(_BLOCK):
                    copied += copy.write(block)
                    bar.update(len(block))
                os.fsync(copy.fileno())
            if copied != size:
                raise DataError(
                    f"{source / name} changed while it was staged; wait until it is whole, then stage again"
                )
    paths.write_text(target / _LIST, json.dumps(files, indent=1) + "\n")
