"""The explorer of memory: the memory of a training step by item, for a model, batch, formats and sharding to choose.

The input is a preset, whose sizes are the start. The output is an explorer with a bar per item in GiB. The model is
``profile.memory``. The stages of sharding are those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054).
"""

import dataclasses
from typing import Any

from dltutorial.config import Preset
from dltutorial.course.explorers.explorer import Explorer, choice, count, geometric, size, slider, whole
from dltutorial.profile.memory import FORMATS, OPTIMIZERS, Memory, Shape, largest_batch, of_step
from dltutorial.record.plots import BLUE, GREEN, ORANGE

_GIB = 2**30
_ITEMS = ("weights", "16-bit copies", "master copies", "gradients", "optimizer", "activations")
_CHECKPOINTING = (("saved", False), ("recomputed", True))
_STAGES = (("0: nothing", 0), ("1: optimizer states", 1), ("2: and gradients", 2), ("3: and weights", 3))


def memory(preset: Preset, formats: str = "fp32", device_gib: float = 40.0) -> Explorer:
    """Return an explorer with a bar for each item and one for the sum, beside the memory of a device.

    Args:
        preset: The sizes at which the controls start. One rank has the whole batch.
        formats: A key of ``profile.memory.FORMATS``, at which the control starts.
        device_gib: The memory of the device in GiB.

    Returns:
        The explorer, which a notebook displays.
    """
    start = Shape.of(preset)

    def draw(ax: Any, values: Any) -> str:
        shape = dataclasses.replace(start, dim=values.dim, depth=values.depth, tokens=values.tokens)
        options = {
            "formats": values.formats,
            "optimizer": values.optimizer,
            "checkpointing": values.checkpointing,
            "ranks": values.ranks,
            "stage": values.stage,
        }
        device_bytes = values.device * _GIB
        needed = of_step(shape, values.batch, **options)
        _draw_bars(ax, needed, device_bytes)
        return _in_words(shape, values, needed, largest_batch(device_bytes, shape, **options))

    return Explorer(
        "Memory of one training step on one rank",
        draw,
        dim=slider("Width", "Numbers of a token.", start.dim, whole(32, 16_384)),
        depth=slider("Depth", "Blocks, one after the other.", start.depth, whole(1, 128)),
        tokens=slider("Tokens", "Patches of one sample.", start.tokens, whole(16, 65_536)),
        batch=slider("Batch of a rank", "Samples of a step.", preset.global_batch_size, whole(1, 1024), "samples"),
        formats=choice("Formats", "Autocast keeps the model in fp32; 16-bit weights need a copy.", FORMATS, formats),
        optimizer=choice("Optimizer", "How many numbers of state each weight has.", OPTIMIZERS, "adamw"),
        checkpointing=choice("Activations", "Checkpointing saves each block's input only.", _CHECKPOINTING, False),
        stage=choice("Sharding", "Stages of ZeRO: what each rank holds only a shard of.", _STAGES, 0),
        ranks=slider("Ranks", "They share what is sharded; each has a batch of its own.", 1, whole(1, 4096)),
        device=slider("Memory of a device", "Drawn as a dashed line.", device_gib, geometric(1, 256), "GiB"),
    )


def _items(needed: Memory) -> dict[str, float]:
    """Return the bytes of each item by its name."""
    return dict(zip(_ITEMS, dataclasses.astuple(needed), strict=True))


def _draw_bars(ax: Any, needed: Memory, device_bytes: float) -> None:
    """Draw a bar for each item and a hatched one for the sum, and a dashed line for the device."""
    items = _items(needed) | {"together": needed.total}
    colours = [BLUE] * len(_ITEMS) + [GREEN]
    bars = ax.barh(list(items), [n_bytes / _GIB for n_bytes in items.values()], color=colours)
    bars[-1].set_hatch("//")
    ax.bar_label(bars, [size(n_bytes) if n_bytes else "none" for n_bytes in items.values()], padding=3)
    ax.axvline(device_bytes / _GIB, color=ORANGE, ls="--")
    visible_bytes = max(needed.total, min(device_bytes, 3 * needed.total))
    ax.set(xlabel=f"GiB (dashed: {size(device_bytes)})", xlim=(0, 1.2 * visible_bytes / _GIB))
    ax.invert_yaxis()
    ax.figure.subplots_adjust(left=0.2)


def _in_words(shape: Shape, values: Any, needed: Memory, most_samples: int) -> str:
    """Say whether the step fits into the memory of the device, and what needs most of it."""
    device_bytes = values.device * _GIB
    left_bytes = device_bytes - needed.total
    fit = f"fits into {size(device_bytes)}, {size(left_bytes)} are left"
    if left_bytes < 0:
        fit = f"{size(-left_bytes)} too much for {size(device_bytes)}"
    items = _items(needed)
    largest = max(items, key=items.__getitem__)
    batch = "Not even one sample fits."
    if most_samples:
        batch = f"The largest batch that fits is {most_samples:,}."
    return (
        f"{shape.parameters:,} weights, {count(values.batch, 'sample')} on each of {count(values.ranks, 'rank')}: "
        f"{size(needed.total)} in all, {fit}. Most of it: {largest}, {size(items[largest])} or "
        f"{items[largest] / needed.total:.0%}. {batch}"
    )
