"""Batches of any loader, over and over, on the device.

In: an iterable of batches, or a function that makes one. Out: an endless iterator whose worker processes end with the
block that asked for it.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch

from dltutorial.errors import CourseError

_RESTART = "give a list, a DataLoader, or a function that makes an iterator of batches"


def samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor or array in it.

    Raises:
        CourseError: there is none.
    """
    found = next(_leaves(batch), None)
    if found is None:
        raise CourseError(f"cannot count the samples of a batch of type {type(batch).__name__}; pass batch_size")
    return int(found.shape[0])


@contextlib.contextmanager
def batches_of(loader: Iterable | Callable[[], Iterable], device: str) -> Iterator[Iterator]:
    """Batches for ever, on the device; worker processes end with the block.

    Raises:
        CourseError: no batch, or an iterator that has ended.
    """
    endless = _endless(loader)
    try:
        yield (to_device(batch, device) for batch in endless)
    finally:
        endless.close()


def made_ahead(loader: Any) -> int:
    """How many batches the workers of a ``DataLoader`` make ahead; 0 for anything else, which does not tell."""
    return getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", None) or 0)


def to_device(batch: Any, device: str) -> Any:
    """The batch with its tensors on the device; lists, tuples and dictionaries keep their form."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(part, device) for part in batch)
    return batch


def _endless(loader: Any) -> Generator:
    """The loader's batches, over and over."""
    make = loader if callable(loader) and not hasattr(loader, "__iter__") else None
    while True:
        source = make() if make else loader
        iterator, count = iter(source), 0
        once = make is None and iterator is source
        try:
            for batch in iterator:
                count += 1
                yield batch
        finally:
            if not once and hasattr(iterator, "close"):
                iterator.close()
        if once:
            raise CourseError(f"the loader is an iterator, and it has ended; {_RESTART}")
        if count == 0:
            raise CourseError(f"the loader gave no batch; {_RESTART}")


def _leaves(batch: Any) -> Iterator[Any]:
    """Tensors and arrays in a batch that have a length."""
    if getattr(batch, "ndim", 0):
        yield batch
    elif isinstance(batch, (list, tuple, dict)):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _leaves(part)
