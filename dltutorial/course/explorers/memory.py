"""The explorer of chapter 16: the memory of a training step by item, for a model, a batch, formats and sharding.

The input is a preset, whose sizes are the start. The output is an explorer with a bar per item in GiB. The model is
``profile.memory``. The stages of sharding are those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054).
"""

import dataclasses
from typing import Any

from dltutorial.config import Preset
from dltutorial.course.explorers.explorer import Explorer, choice, log_slider, power_slider, size
from dltutorial.profile.memory import FORMATS, OPTIMIZERS, Shape, largest_batch, of_step
from dltutorial.record.plots import BLUE, ORANGE

_GIB = 2**30
_ITEMS = ("weights", "16-bit copies", "master copies", "gradients", "optimizer", "activations")
_CHECKPOINTING = (("saved", False), ("recomputed", True))
_STAGES = (("0: nothing", 0), ("1: optimizer states", 1), ("2: and gradients", 2), ("3: and weights", 3))


def memory(preset: Preset, formats: str, device_gib: float) -> Explorer:
    """Return an explorer with a bar for each item, beside the memory of a device.

    Args:
        preset: The sizes at which the widgets start. One rank has the whole batch.
        formats: A key of ``profile.memory.FORMATS``, at which the list starts.
        device_gib: The memory of the device in GiB.
    """
    start = Shape.of(preset)

    def draw(ax: Any, dim: int, depth: int, tokens: int, batch: int, device: float, **options: Any) -> str:
        shape = dataclasses.replace(start, dim=dim, depth=depth, tokens=tokens)
        needed = of_step(shape, batch, **options)
        device_bytes = device * _GIB
        items = dataclasses.astuple(needed)
        bars = ax.barh(_ITEMS, [n_bytes / _GIB for n_bytes in items], color=BLUE)
        ax.bar_label(bars, [size(n_bytes) for n_bytes in items], padding=3)
        ax.axvline(device, color=ORANGE, ls="--")
        ax.set(
            xlabel=f"GiB (dashed: the device has {size(device_bytes)})",
            xlim=(0, 1.2 * max(needed.total / _GIB, device)),
        )
        ax.invert_yaxis()
        fit = "fits" if needed.total <= device_bytes else "does not fit"
        most_samples = largest_batch(device_bytes, shape, **options)
        return (
            f"{shape.parameters:,} weights, batch {batch:,} on each of {options['ranks']:,} ranks: a rank needs "
            f"{size(needed.total)}, which {fit} into {size(device_bytes)}. The largest batch that fits has "
            f"{most_samples:,} samples."
        )

    return Explorer(
        draw,
        dim=power_slider("Width", start.dim, 32, 16_384),
        depth=power_slider("Depth [blocks]", start.depth, 1, 128),
        tokens=power_slider("Tokens of a sample", start.tokens, 16, 65_536),
        batch=power_slider("Batch of a rank [samples]", preset.global_batch_size, 1, 1024),
        formats=choice("Formats", FORMATS, formats),
        optimizer=choice("Optimizer", OPTIMIZERS, "adamw"),
        checkpointing=choice("Activations", _CHECKPOINTING, False),
        stage=choice("Sharding", _STAGES, 0),
        ranks=power_slider("Ranks", 1, 1, 4096),
        device=log_slider("Memory of a device [GiB]", device_gib, 1, 256),
    )
