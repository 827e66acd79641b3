"""Memory of a training step, item by item, with the model, the batch, the formats and the sharding to move.

In: a recipe. Out: a bar for every item and one for the sum, beside the memory of a device. Model:
``dltutorial.profile.memory``, which agrees with what torch keeps within 5%.
"""

import dataclasses
from collections.abc import Mapping

from dltutorial.config import PRESETS, Recipe
from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider
from dltutorial.course.explorers.words import size
from dltutorial.course.guess import positive
from dltutorial.profile.memory import FORMATS, OPTIMIZERS, STAGES, Memory, Shape, largest_batch, of_step

_GIB = 2**30
_KEPT, _AGAIN = "kept", "computed again"
_FORMATS: Mapping[str, str] = {"fp32": "fp32", "tf32": "fp32", "bf16": "16-bit autocast", "fp16": "16-bit autocast"}
_NAMES = {
    "weights": "weights",
    "low_copies": "16-bit copies",
    "master_weights": "master copies",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
}
_STAGES = {
    0: "0: nothing",
    1: "1: optimizer states",
    2: "2: and gradients",
    3: "3: and weights",
}
_ROW = 32


def memory(recipe: Recipe, device_gib: float = 40.0) -> None:
    """Show where the memory of a recipe's step goes; arguments as of :func:`make`."""
    make(recipe, device_gib).explore()


def make(recipe: Recipe, device_gib: float = 40.0) -> Explorer:
    """A training step to move.

    Args:
        recipe: where the controls start; its whole batch on one rank.
        device_gib: memory of the device.

    Raises:
        CourseError: a model beyond the ends of the sliders, or memory that is not positive.
    """
    start = Shape.of(recipe)

    def draw(
        dim: int, depth: int, tokens: int, batch: int, formats: str, optimizer: str, activations: str, stage: str,
        ranks: int, device: float,
    ) -> Drawing:  # fmt: skip
        shape = dataclasses.replace(start, dim=dim, depth=depth, tokens=tokens)
        how = {"formats": formats, "optimizer": optimizer, "checkpointing": activations == _AGAIN, "ranks": ranks,
               "stage": int(stage[0]), "fused": recipe.fused_attention}  # fmt: skip
        found, room = of_step(shape, batch, **how), device * _GIB
        words = _words(shape, batch, found, room, largest_batch(room, shape, **how), ranks)
        return Drawing(words, _picture(found, room))

    controls = [
        Slider("dim", "Width", value=start.dim, low=32, high=16_384, log=True, integer=True,
               help="Numbers of a token."),
        Slider("depth", "Depth", value=start.depth, low=1, high=128, log=True, integer=True,
               help="Blocks, one after the other."),
        Slider("tokens", "Tokens", value=start.tokens, low=16, high=65_536, log=True, integer=True,
               help="Patches of one sample."),
        Slider("batch", "Batch of a rank", value=recipe.global_batch_size, low=1, high=1024, log=True, integer=True,
               unit="samples", help="Samples of one step on one rank."),
        Choice("formats", "Formats", tuple(FORMATS), value=_FORMATS[recipe.precision],
               help="With autocast the model stays in fp32; 16-bit weights need a master copy."),
        Choice("optimizer", "Optimizer", tuple(OPTIMIZERS), value=recipe.optimizer,
               help="AdamW and LAMB keep two averages of every weight, SGD with momentum and LARS one."),
        Choice("activations", "Activations", (_KEPT, _AGAIN), value=_KEPT,
               help="Checkpointing keeps each block's input and computes the rest a second time."),
        Choice("stage", "Sharding", tuple(_STAGES[stage] for stage in STAGES), value=_STAGES[0],
               help="Stages of ZeRO: what each rank holds only its part of."),
        Slider("ranks", "Ranks", value=8, low=1, high=4096, log=True, integer=True,
               help="That share what is sharded; each has a batch of its own."),
        Slider("device", "Memory of a device", value=min(max(positive(device_gib, "device_gib"), 1), 256), low=1,
               high=256, log=True, unit="GiB", help="Drawn as a dashed line."),
    ]  # fmt: skip
    return Explorer("Memory of one training step on one rank", controls, draw)


def example() -> Explorer:
    """The vision transformer of the published ladder, 16 samples in fp32, on a device of 40 GiB."""
    return make(Recipe.of(PRESETS["gpu"]))


def _words(shape: Shape, batch: int, found: Memory, room: float, most: int, ranks: int) -> str:
    left = room - found.total
    fits = f"fits into {size(room)}, {size(left)} are left" if left >= 0 else f"{size(-left)} too much for {size(room)}"
    parts = dataclasses.asdict(found)
    largest = max(parts, key=parts.__getitem__)
    return (
        f"{shape.parameters:,} weights, {batch:,} sample{'' if batch == 1 else 's'} on each of {ranks:,} "
        f"rank{'' if ranks == 1 else 's'}: {size(found.total)} in all, {fits}. Most of it: {_NAMES[largest]}, "
        f"{size(parts[largest])} or {parts[largest] / found.total:.0%}. "
        + (f"The largest batch that fits is {most:,}." if most else "Not even one sample fits.")
    )


def _picture(found: Memory, room: float) -> list[str]:
    """A bar a line, the sum last; the device is a dashed line."""
    values = {_NAMES[name]: value for name, value in dataclasses.asdict(found).items()} | {"together": found.total}
    unit = _GIB if found.total >= _GIB / 2 else 2**20
    axes = svg.Axes(
        (0, 1.02 * max(found.total, room if room < 3 * found.total else 0) / unit), (0, 1), ticks_y={},
        labels=("GiB" if unit == _GIB else "MiB", ""), margins=(112, 92, 22, 48),
    )  # fmt: skip
    parts = axes.frame()
    for number, (name, value) in enumerate(values.items()):
        y = axes.top + 6 + _ROW * number
        width, whole = axes.x(value / unit) - axes.left, name == "together"
        parts.append(svg.text(axes.left - 8, y + 16, name, anchor="end", bold=whole))
        parts.append(
            svg.bar(axes.left, y, width, 22, svg.GREEN if whole else svg.BLUE, "striped" if whole else "solid")
        )
        parts.append(svg.text(axes.right + 8, y + 16, size(value) if value else "none", bold=whole))
    if room / unit <= axes.limits_x[1]:
        parts.append(axes.upright(room / unit, svg.RED))
        parts.append(svg.text(axes.x(room / unit), axes.top - 6, size(room), anchor="middle"))
    return parts
