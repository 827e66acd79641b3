"""Write arrays to HDF5 files, and read them. Reading checks their shapes and values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dltutorial.data import formats
from dltutorial.errors import DataError


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write an HDF5 file with these arrays."""
    with h5py.File(file, "w", locking=False) as out:  # some shared file systems have no locks
        for name, values in arrays.items():
            out[name] = values


def read_arrays(file: Path, shapes: dict[str, str]) -> list[np.ndarray]:
    """Read arrays of an HDF5 file as float32.

    Args:
        file: The HDF5 file.
        shapes: The shape of each array by its name, such as ``"N 12 H W"``. A letter stands for any size, and the
            same letter stands for the same size in all arrays.

    Returns:
        The arrays, in the order of ``shapes``.

    Raises:
        DataError: The file cannot be read, an array is missing or has another shape, or a number is NaN or infinite.
    """
    sizes: dict[str, int] = {}
    arrays = []
    with formats.readable(file), formats.open_hdf5(file) as h5:
        for name, shape in shapes.items():
            array = find_array(file, h5, name, shape, sizes)
            arrays.append(array[...].astype(np.float32))
    for name, values in zip(shapes, arrays, strict=True):
        finite = np.isfinite(values)
        if not finite.all():
            row = np.argwhere(~finite)[0, 0]
            raise DataError(f"{file}: row {row} of {name} holds NaN or infinity; correct it, or leave it out")
    return arrays


def find_array(file: Path, h5: h5py.File, name: str, shape: str, sizes: dict[str, int]) -> h5py.Dataset:
    """Return an array of an open file, whose values are not read yet.

    Args:
        file: The name of the file, for the messages.
        h5: The open file.
        name: The name of the array.
        shape: The shape, as in ``read_arrays``.
        sizes: The sizes that letters have so far. This function adds to them.

    Raises:
        DataError: The array is missing or has another shape.
    """
    if name not in h5:
        raise DataError(f"{file} has no array {name!r}")
    array = h5[name]
    letters = shape.split()
    fits = len(letters) == array.ndim and array.size > 0
    for letter, size in zip(letters, array.shape, strict=False):
        expected = int(letter) if letter.isdigit() else sizes.setdefault(letter, size)
        fits = fits and size == expected
    if not fits:
        wanted = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
        raise DataError(f"{file}: {name} has the shape {array.shape}, not ({wanted})")
    return array


def hdf5_files(folder: Path) -> list[Path]:
    """Return the HDF5 files of a folder in the order of their names.

    Raises:
        DataError: The folder holds none.
    """
    files = sorted([*folder.glob("*.h5"), *folder.glob("*.hdf5")])
    if not files:
        raise DataError(f"{folder} holds no .h5 file")
    return files
