"""How a year lies on disk: HDF5 with chosen chunks and compression, a NumPy array, Zarr; and writing one so.

In: a name such as ``hdf5-chunk16-gzip4``, a year in any layout. Out: a ``Layout``; the same year in it.

Legend: T snapshots, C channels, H rows (latitude), W columns (longitude).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dltutorial import paths
from dltutorial.data import formats, hdf5_file, writing
from dltutorial.errors import RecipeError

_NAME = re.compile(
    r"(?P<kind>hdf5|npy|zarr)(-(?P<chunk>auto|contiguous|chunk(\d+)))?(-(?P<compression>gzip|lzf|zstd)(?P<level>\d+)?)?"
)
FORMS = "npy, or hdf5 or zarr with -auto, -contiguous (hdf5 only) or -chunkN, then -gzipL, -lzf (hdf5) or -zstd (zarr)"
_SUFFIXES = {"hdf5": ".h5", "npy": ".npy", "zarr": ".zarr"}


@dataclass(frozen=True)
class Layout:
    """How a year lies on disk.

    Attributes:
        kind: hdf5, npy or zarr.
        chunk: snapshots in a chunk, each chunk as wide as the field; "auto" leaves the shape of the chunks to the
            library; None stores everything in one piece.
        compression: gzip, lzf, zstd or None.
        level: of gzip, 0 to 9.
    """

    kind: str
    chunk: int | str | None = None
    compression: str | None = None
    level: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            RecipeError: naming the layout and why.
        """
        allowed = {"hdf5": ("gzip", "lzf", None), "zarr": ("gzip", "zstd", None), "npy": (None,)}
        why = ""
        if self.compression not in allowed[self.kind]:
            why = f"{self.kind} knows no {self.compression} here"
        elif self.kind == "npy" and self.chunk is not None:
            why = "an npy file has no chunks"
        elif self.chunk is None and (self.compression or self.kind == "zarr"):
            why = "only chunks can be compressed" if self.compression else "a Zarr array has chunks"
        elif isinstance(self.chunk, int) and self.chunk < 1:
            why = "a chunk holds at least 1 snapshot"
        elif self.level is not None and not (self.compression == "gzip" and self.level <= 9):
            why = "only gzip has a level, from 0 to 9"
        if why:
            raise RecipeError(f"layout {self.name!r} cannot be: {why}; choose {FORMS}")

    @classmethod
    def of(cls, name: str) -> "Layout":
        """The layout of a name such as ``hdf5-chunk16-gzip4``, ``hdf5-contiguous``, ``npy`` or ``zarr-chunk1-zstd``.

        Raises:
            RecipeError: there is no such layout.
        """
        match = _NAME.fullmatch(name)
        if not match:
            raise RecipeError(f"no layout {name!r}; choose {FORMS}")
        chunk = match["chunk"]
        depth = None if chunk in (None, "contiguous") else chunk if chunk == "auto" else int(chunk[len("chunk") :])
        return cls(match["kind"], depth, match["compression"], int(match["level"]) if match["level"] else None)

    @property
    def name(self) -> str:
        """What ``of`` reads."""
        if self.kind == "npy" and self.chunk is None:
            return "npy"
        chunk = {None: "contiguous", "auto": "auto"}.get(self.chunk, f"chunk{self.chunk}")
        level = "" if self.level is None else str(self.level)
        return f"{self.kind}-{chunk}" + (f"-{self.compression}{level}" if self.compression else "")

    @property
    def suffix(self) -> str:
        """Of a year's file."""
        return _SUFFIXES[self.kind]


def write_year(year: formats.Year, target: Path, layout: Layout, tick: Callable[[int], object]) -> None:
    """One year in the layout; it takes its name when it is whole."""
    writer = {"hdf5": _write_hdf5, "npy": _write_npy, "zarr": _write_zarr}[layout.kind]
    atomic = writing.atomic_folder if layout.kind == "zarr" else paths.atomic
    with atomic(target) as temporary:
        writer(year, temporary, layout, tick)


def _blocks(year: formats.Year, depth: int, tick: Callable[[int], object]) -> Iterator[tuple[slice, np.ndarray]]:
    """The year in pieces as deep as a chunk, so that each chunk is compressed once."""
    for first in range(0, len(year), depth):
        block_TCHW = year.snapshots(first, min(depth, len(year) - first))
        yield slice(first, first + len(block_TCHW)), block_TCHW
        tick(len(block_TCHW))


def _write_hdf5(year: formats.Year, target: Path, layout: Layout, tick: Callable[[int], object]) -> None:
    chunks = {None: None, "auto": True}.get(layout.chunk, (layout.chunk, *year.shape))
    with hdf5_file.created(target) as (h5, check):
        fields = h5.create_dataset(
            "fields",
            (len(year), *year.shape),
            np.float32,
            chunks=chunks,
            compression=layout.compression,
            compression_opts=layout.level,
        )
        for place, block_TCHW in _blocks(year, fields.chunks[0] if fields.chunks else 8, tick):
            fields[place] = block_TCHW
            check()


def _write_npy(year: formats.Year, target: Path, layout: Layout, tick: Callable[[int], object]) -> None:
    """Written as a stream, not through a map: a full disk is then an error, and not the end of the process."""
    with open(target, "wb") as out:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(year), *year.shape)}
        np.lib.format.write_array_header_2_0(out, header)
        for _, block_TCHW in _blocks(year, 8, tick):
            out.write(np.ascontiguousarray(block_TCHW, "<f4").data)


def _write_zarr(year: formats.Year, target: Path, layout: Layout, tick: Callable[[int], object]) -> None:
    import zarr
    from zarr.codecs import GzipCodec, ZstdCodec

    codecs = {"gzip": lambda: GzipCodec(level=5 if layout.level is None else layout.level), "zstd": ZstdCodec}
    fields = zarr.create_array(
        target,
        shape=(len(year), *year.shape),
        dtype="float32",
        chunks="auto" if layout.chunk == "auto" else (layout.chunk, *year.shape),
        compressors=codecs[layout.compression]() if layout.compression else None,
        fill_value=float("nan"),
        overwrite=True,
    )
    for place, block_TCHW in _blocks(year, fields.chunks[0], tick):
        fields[place] = block_TCHW
