"""Build a simulated data set under a temporary name, and write arrays to its files."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py

from dltutorial import node
from dltutorial.data import writing


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Give an empty temporary folder, which gets the name ``final`` if no error occurs.

    Raises:
        CourseError: This is a login node.
        DataError: The files cannot be written, for example because the disk is full.
    """
    node.refuse_on_login(f"simulating {final.name}")
    with writing.building(final) as temporary:
        yield temporary
        about = {"name": final.name, "simulated": True}
        (temporary / "dataset.json").write_text(json.dumps(about), encoding="utf-8")


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write an HDF5 file with these arrays."""
    with h5py.File(file, "w", locking=False) as out:  # some shared file systems have no locks
        for name, values in arrays.items():
            out[name] = values
