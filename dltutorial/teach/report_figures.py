"""The figures of ``dltutorial report``.

In: peaks, records, what runs recorded, published figures. Out: each function draws one figure and hands it, with its
alt text, to ``to`` (a function of both). No torch is loaded.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dltutorial.observe import plots
from dltutorial.peaks import Peaks

Sink = Callable[[Any, str], object]
Curve = Sequence[tuple[int, float]]
RATIO = "valid/rmse_ratio_to_persistence"
_MARKERS = "osD^vPX*"
# The rungs that the five published ladders share, in order; each takes the best of its rows.
_RUNGS = {
    "as written": ("baseline",),
    "workers": ("workers_4", "workers_8", "workers_16"),
    "DALI": ("dali",),
    "half precision": ("fp16", "bf16"),
    "fused optimizer": ("fused_adam",),
    "compile": ("compile",),
}
_MODELS = {"sc21": "3-D U-Net", "sc22": "3-D U-Net", "sc23": "ViT", "sc24": "ViT", "sc25": "ViT"}


def roofline(peaks: Peaks, to: Sink) -> None:
    """Attainable speed against arithmetic intensity, as measured on this machine."""
    ceilings = {dtype: figure.best for dtype, figure in peaks.matmul.items() if figure}
    dtype = "fp32" if "fp32" in ceilings else next(iter(ceilings))
    ridge = peaks.ridge(dtype)
    title = f"Under {ridge:.3g} FLOP per byte, memory sets the pace ({dtype})"
    tops = ", ".join(f"{name} {peak / 1e9:,.0f}" for name, peak in ceilings.items())
    alt = (
        f"Roofline of {peaks.machine}: attainable GFLOP/s rise with arithmetic intensity at "
        f"{peaks.memory_bytes_per_s / 1e9:.3g} GB/s up to flat ceilings in GFLOP/s: {tops}."
    )
    with plots.figure(title, alt, to=to) as ax:
        plots.roofline(ax, peaks.memory_bytes_per_s, ceilings)


def convergence(curves: Mapping[str, Curve], to: Sink) -> None:
    """Error relative to persistence against updates, one line for each run."""
    ends = {name: curve[-1][1] for name, curve in curves.items()}
    n_better = sum(end < 1 for end in ends.values())
    title = f"{n_better} of {len(ends)} {'run ends' if len(ends) == 1 else 'runs end'} with less error than persistence"
    alt = "Validation error divided by persistence's, against updates. Last values: " + ", ".join(
        f"{name} {end:.2f}" for name, end in ends.items()
    )
    top = 1.08 * max(1, *(value for curve in curves.values() for _, value in curve))
    with plots.figure(title, alt, size=(8, 4.4), to=to) as ax:
        for (name, curve), marker in zip(curves.items(), _cycle(len(curves)), strict=True):
            ax.plot(*zip(*curve, strict=True), marker=marker, label=f"{_text(name)}: {ends[name]:.2f}")
        ax.axhline(1, color=plots.GREY, ls="--", lw=1.2)
        ax.annotate("persistence", (0, 1), xycoords=("axes fraction", "data"), xytext=(4, 4), color=plots.GREY,
                    textcoords="offset points")  # fmt: skip
        ax.set(xlabel="updates", ylabel="RMSE / RMSE of persistence", xlim=(0, None), ylim=(0, top))
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


def predictions(rows: Sequence[Mapping[str, Any]], to: Sink) -> None:
    """Guess and model of each prediction, divided by the measurement, on a logarithmic axis."""
    title = "How far from the measurement was the guess, how far the model?"
    if models := factors(row.get("model_ratio") for row in rows):
        title = f"The models' predictions are off by a factor of {statistics.median(models):.2f} in the median"
    alt = "Prediction divided by measurement. " + "; ".join(
        f"{row['what']}: guess {_number(row.get('ratio'))}, model {_number(row.get('model_ratio'))}" for row in rows
    )
    with plots.figure(title, alt, size=(8, 1.4 + 0.36 * len(rows)), to=to) as ax:
        for key, marker, colour, name in (
            ("ratio", "o", plots.ORANGE, "guess"),
            ("model_ratio", "s", plots.BLUE, "model"),
        ):
            points = [(row[key], y) for y, row in enumerate(rows) if is_ratio(row.get(key))]
            if points:
                ax.plot(*zip(*points, strict=True), marker, color=colour, ms=9, mfc="white", mew=2, label=name)
        ax.axvline(1, color=plots.GREY, ls="--", lw=1.2, label="measured")
        worst = 1.3 * max(2, *factors(row.get(key) for row in rows for key in ("ratio", "model_ratio")))
        ax.set(xscale="log", xlabel="prediction / measurement", ylim=(len(rows) - 0.5, -0.5), xlim=(1 / worst, worst))
        near = (2, 5) if worst < 20 else (3,)  # farther out, the labels would touch
        steps = [s for s in (1, *near, 10, 100, 10**4, 10**6) if s < worst]
        ticks = {s: f"{s} ×" for s in steps} | {1 / s: f"1/{s} ×" for s in steps[1:]}
        ax.set_xticks(list(ticks), list(ticks.values()))
        ax.minorticks_off()
        ax.set_yticks(range(len(rows)), [_text(f"{row['chapter']} {row['what']}") for row in rows])
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


def ladders(to: Sink) -> None:
    """The published ladders: throughput on one GPU, relative to where each began."""
    found = ladder_gains()
    alt = "Throughput relative to the first row after each step of tuning. In the end: " + ", ".join(
        f"{year.upper()} {list(gains.values())[-1]:.1f} times" for year, gains in found.items()
    )
    title = "The 3-D U-Net gains most from faster input, the ViT from half precision"
    with plots.figure(title, alt, size=(8, 4.4), to=to) as ax:
        ordered = sorted(found.items(), key=lambda item: -list(item[1].values())[-1])
        for (year, gains), marker in zip(ordered, _MARKERS, strict=False):
            x = [list(_RUNGS).index(rung) for rung in gains]
            label = f"{year.upper()}, {_MODELS[year]}: {list(gains.values())[-1]:.1f} ×"
            ax.plot(x, list(gains.values()), marker=marker, ls="-" if _MODELS[year] == "ViT" else "--", label=label)
        ax.set(yscale="log", ylabel="samples/s, relative to the first row")
        ax.set_yticks([1, 2, 4, 8], ["1 ×", "2 ×", "4 ×", "8 ×"])
        ax.minorticks_off()
        ax.set_xticks(range(len(_RUNGS)), list(_RUNGS))
        ax.legend(loc="upper left")


def ladder_gains() -> dict[str, dict[str, float]]:
    """For each published ladder: rung → throughput over its baseline's; rungs it does not have are left out."""
    rows = {row["step"]: row for row in plots.reference("nersc_ladders")}
    found: dict[str, dict[str, float]] = {}
    for year in _MODELS:
        base = float(rows["baseline"][year])
        for rung, steps in _RUNGS.items():
            values = [float(rows[step][year]) for step in steps if rows[step][year]]
            if values:
                found.setdefault(year, {})[rung] = max(values) / base
    return found


def is_ratio(value: Any) -> bool:
    """Whether a record's value is a positive, finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def factors(ratios: Any) -> list[float]:
    """By what factor each ratio is off, at least 1; what is no ratio is passed over."""
    return [max(ratio, 1 / ratio) for ratio in ratios if is_ratio(ratio)]


def _cycle(n: int) -> list[str]:
    return [_MARKERS[index % len(_MARKERS)] for index in range(n)]


def _number(value: Any) -> str:
    return f"{value:.2f}" if is_ratio(value) else "none"


def _text(words: str) -> str:
    """Words as they are: matplotlib would read dollar signs as mathematics."""
    return words.replace("$", r"\$")
