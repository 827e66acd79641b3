"""Memory of a training step, item by item, with the model, the batch, the formats and the sharding to move."""

import dataclasses
from typing import Any

from dltutorial.config import Preset
from dltutorial.course.explorers.explorer import Explorer, choice, geometric, size, slider, whole
from dltutorial.profile.memory import FORMATS, OPTIMIZERS, Shape, largest_batch, of_step
from dltutorial.record.plots import BLUE, GREEN, ORANGE

_GIB = 2**30
_NAMES = ("weights", "16-bit copies", "master copies", "gradients", "optimizer", "activations")
_KEPT = (("kept", False), ("computed again", True))
_STAGES = (("0: nothing", 0), ("1: optimizer states", 1), ("2: and gradients", 2), ("3: and weights", 3))


def memory(preset: Preset, formats: str = "fp32", device_gib: float = 40.0) -> Explorer:
    """A bar for every item and one for the sum, beside the memory of a device. Model: ``profile.memory``.

    Args:
        preset: the sizes at which the controls start. One rank has the whole batch.
        formats: a key of ``profile.memory.FORMATS``, at which the control starts.
        device_gib: memory of the device.

    Returns:
        The explorer, which a notebook displays.
    """
    start = Shape.of(preset)

    def draw(ax: Any, v: Any) -> str:
        shape, room = dataclasses.replace(start, dim=v.dim, depth=v.depth, tokens=v.tokens), v.device * _GIB
        how = {name: getattr(v, name) for name in ("formats", "optimizer", "checkpointing", "ranks", "stage")}
        found, most = of_step(shape, v.batch, **how), largest_batch(room, shape, **how)
        items = dict(zip(_NAMES, dataclasses.astuple(found), strict=True)) | {"together": found.total}
        bars = ax.barh(list(items), [n_bytes / _GIB for n_bytes in items.values()], color=[*[BLUE] * 6, GREEN])
        bars[-1].set_hatch("//")
        ax.bar_label(bars, [size(n_bytes) if n_bytes else "none" for n_bytes in items.values()], padding=3)
        ax.axvline(v.device, color=ORANGE, ls="--")
        end = 1.2 * max(found.total, min(room, 3 * found.total)) / _GIB
        ax.set(xlabel=f"GiB (dashed: {size(room)})", xlim=(0, end))
        ax.invert_yaxis()
        ax.figure.subplots_adjust(left=0.2)
        left, largest = room - found.total, max(_NAMES, key=items.__getitem__)
        fits = f"fits into {size(room)}, {size(left)} are left"
        return (
            f"{shape.parameters:,} weights, {v.batch:,} sample{'s' * (v.batch > 1)} on each of {v.ranks:,} "
            f"rank{'s' * (v.ranks > 1)}: {size(found.total)} in all, "
            f"{fits if left >= 0 else f'{size(-left)} too much for {size(room)}'}. Most of it: {largest}, "
            f"{size(items[largest])} or {items[largest] / found.total:.0%}. "
            + (f"The largest batch that fits is {most:,}." if most else "Not even one sample fits.")
        )

    return Explorer(
        "Memory of one training step on one rank",
        draw,
        dim=slider("Width", "Numbers of a token.", start.dim, whole(32, 16_384)),
        depth=slider("Depth", "Blocks, one after the other.", start.depth, whole(1, 128)),
        tokens=slider("Tokens", "Patches of one sample.", start.tokens, whole(16, 65_536)),
        batch=slider("Batch of a rank", "Samples of a step.", preset.global_batch_size, whole(1, 1024), "samples"),
        formats=choice("Formats", "Autocast keeps the model in fp32; 16-bit weights need a copy.", FORMATS, formats),
        optimizer=choice("Optimizer", "How many averages of every weight are kept.", OPTIMIZERS, "adamw"),
        checkpointing=choice("Activations", "Checkpointing keeps each block's input only.", _KEPT, False),
        stage=choice("Sharding", "Stages of ZeRO: what each rank holds only its part of.", _STAGES, 0),
        ranks=slider("Ranks", "That share what is sharded; each has a batch of its own.", 1, whole(1, 4096)),
        device=slider("Memory of a device", "Drawn as a dashed line.", device_gib, geometric(1, 256), "GiB"),
    )
