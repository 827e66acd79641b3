"""Build a simulated data set in a temporary folder, and rename the folder when the data set is complete.

The final name exists only if all files are there. If two processes build the same data set at the same time, the
second one discards its copy, because both copies hold the same numbers.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py

from dltutorial import node
from dltutorial.errors import DataError


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Give an empty temporary folder, which gets the name ``final`` if no error occurs.

    Raises:
        CourseError: This is a login node.
        DataError: The files cannot be written, for example because the disk is full.
    """
    node.refuse_on_login(f"simulating {final.name}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent) as parent:
            temporary = Path(parent) / final.name
            temporary.mkdir()
            yield temporary
            if not final.exists():
                temporary.rename(final)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot write {final}: {reason}; make room, or set DLTUTORIAL_DATA") from error


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write an HDF5 file with these arrays."""
    with h5py.File(file, "w") as out:
        for name, values in arrays.items():
            out[name] = values
