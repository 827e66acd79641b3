"""The knobs of a loader, which ones fit together, and the loaders that have a name. Loads no torch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dltutorial.errors import RecipeError


@dataclass(frozen=True)
class Feed:
    """The knobs of one loader. The default is the naive one.

    Attributes:
        keep_open: open each file once, not for every sample.
        lean: normalise and shift in float32, in place; otherwise in float64 with a new array for every operation.
        workers: processes that load beside the training process.
        buffered: read a batch into one block of memory that is used again (pinned for a GPU), in the order of the
            file; otherwise into new arrays, which are then stacked. Needs keep_open and lean, and no workers.
        prefetch: batches that a thread loads ahead.
        on_device: normalise and shift a whole batch on the device. Needs buffered.
    """

    keep_open: bool = False
    lean: bool = False
    workers: int = 0
    buffered: bool = False
    prefetch: int = 0
    on_device: bool = False

    def __post_init__(self) -> None:
        """Refuse knobs that do not fit together.

        Raises:
            RecipeError: they do not.
        """
        if self.workers < 0 or self.prefetch < 0:
            raise RecipeError(f"workers={self.workers}, prefetch={self.prefetch}: neither can be negative")
        if self.buffered and (self.workers or not (self.keep_open and self.lean)):
            raise RecipeError("a buffered loader keeps files open, is lean, and has no workers; change the knobs")
        if self.on_device and not self.buffered:
            raise RecipeError("augmentation on the device needs a buffered loader; set buffered=True")


_BATCHED = Feed(keep_open=True, lean=True, buffered=True)
FEEDS: Mapping[str, Feed] = MappingProxyType({
    "naive": Feed(),
    "open": Feed(keep_open=True),
    "lean": Feed(keep_open=True, lean=True),
    "batched": _BATCHED,
    "prefetch": dataclasses.replace(_BATCHED, prefetch=2),
    "device": dataclasses.replace(_BATCHED, on_device=True),
    "best": dataclasses.replace(_BATCHED, on_device=True, prefetch=2),
})  # fmt: skip


def find(feed: Feed | str) -> Feed:
    """A feed by its name.

    Raises:
        RecipeError: there is none of that name.
    """
    if isinstance(feed, Feed):
        return feed
    if feed not in FEEDS:
        raise RecipeError(f"no loader {feed!r}; choose one of {', '.join(FEEDS)}")
    return FEEDS[feed]


def tuned(device: str) -> Feed:
    """The loader to train with on this kind of device, "cuda" or "cpu".

    If the device is the CPU, augmentation "on the device" would run in the step's own thread; so the thread that reads
    ahead does it.
    """
    return FEEDS["best" if device == "cuda" else "prefetch"]
