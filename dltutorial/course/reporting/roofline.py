"""The machine: its measured roofline beside those of published accelerators.

In: chapter 00's records of peaks, the peaks cached on this machine. Out: a section. FLOP/s, bytes/s, FLOP per byte.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dltutorial import machine
from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.profile import peaks, timing
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MATMUL, _COPY = "peak matmul ", "peak memory copy"
_X = np.logspace(-1, 4, 120)  # FLOP per byte


@dataclass(frozen=True)
class Roof:
    """One machine's roofline: bytes/s of copies, FLOP/s of products by dtype."""

    name: str
    bytes_per_s: float
    flop_per_s: Mapping[str, float]

    @property
    def best(self) -> tuple[str, float]:
        """The quickest dtype, and its FLOP/s."""
        return max(self.flop_per_s.items(), key=lambda item: item[1])

    def ridge(self, dtype: str) -> float:
        """FLOP per byte from which on products, not copies, set the pace."""
        return self.flop_per_s[dtype] / self.bytes_per_s


def section(found: Sequence[dict]) -> Section:
    """Roofline, rates, and what the vendors state of accelerators."""
    known = peaks.load()
    roofs = _roofs(found, known)
    rates = _rates(known) + _published(roofs[0] if roofs else None)
    if not roofs:
        body = parts.todo("dltutorial doctor --measure", "takes some seconds; chapter 00 does it, too")
        body += _chart([]).html() + rates
        return Section(
            "This machine", "The peaks of this machine are not measured yet", body, chapters="00", empty=True
        )
    roof = roofs[0]
    dtype, best = roof.best
    copies = timing.rate(roof.bytes_per_s, "B/s")
    finding = f"Products reach {timing.rate(best, 'FLOP/s')} in {dtype}, copies {copies}"
    body = _chart(roofs).html() + rates
    if known:
        words = f"Cached here: measured on {known.time[:10]} with {known.threads} threads, {known.device}."
        again = " Other programs were busy meanwhile: measure again with dltutorial doctor --measure."
        body += parts.note(words + ("" if known.steady else again))
    tile = (timing.rate(best, "FLOP/s"), f"products in {dtype}; copies run at {copies}")
    return Section("This machine", finding, body, (tile,), "00")


def _roofs(found: Sequence[dict], known: peaks.Peaks | None) -> list[Roof]:
    """This machine's from its cache, then those that records tell of; the newest first."""
    roofs = {}
    if known is not None and known.memory is not None and any(known.matmul.values()):
        ceilings = {dtype: figure.best for dtype, figure in known.matmul.items() if figure}
        roofs[known.machine] = Roof(known.machine, known.memory_bytes_per_s, ceilings)
    rows = pick.measured(found, "00", "peak ")
    for name in dict.fromkeys(row["machine"] for row in reversed(rows)):
        of_it = {row["what"]: row["value"] for row in rows if row["machine"] == name}
        ceilings = {what.removeprefix(_MATMUL): v for what, v in of_it.items() if what.startswith(_MATMUL)}
        if ceilings and _COPY in of_it:
            roofs.setdefault(name, Roof(name, of_it[_COPY], ceilings))
    first = [roofs.pop(machine.label())] if machine.label() in roofs else []
    return first + list(roofs.values())


def _chart(roofs: Sequence[Roof]) -> charts.Chart:
    published = _accelerators()
    title = "Published accelerators: from how many FLOP per byte on do products, not copies, set the pace?"
    alt = "Rooflines from data sheets: " + "; ".join(_words(roof) for roof in published)
    if roofs:
        dtype = "fp32" if "fp32" in roofs[0].flop_per_s else roofs[0].best[0]
        title = f"Under {roofs[0].ridge(dtype):.3g} FLOP per byte, memory sets the pace here ({dtype})"
        alt = "Attainable GFLOP/s against arithmetic intensity. " + "; ".join(map(_words, [*roofs, *published]))

    def draw(ax: "Axes", narrow: bool) -> None:
        sheets: dict[tuple[str, float], list[str]] = {}
        for roof in published:
            name, top = roof.best
            ax.plot(_X, np.minimum(_X * roof.bytes_per_s, top) / 1e9, ls="--", lw=1.1, color=plots.GREY)
            sheets.setdefault((name, top), []).append(roof.name.replace("NVIDIA ", "").split()[0])
        for (dtype, top), names in sheets.items():
            _mark(ax, f"{', '.join(names)}: {dtype} {top / 1e9:,.0f}", top, plots.GREY)
        for roof, style in zip(roofs[:3], ("-", "-.", ":"), strict=False):
            tops = roof.flop_per_s if roof is roofs[0] else dict([roof.best])
            for (dtype, top), colour in zip(sorted(tops.items(), key=lambda i: -i[1]), charts.COLOURS * 2,
                                            strict=False):  # fmt: skip
                ax.plot(_X, np.minimum(_X * roof.bytes_per_s, top) / 1e9, style, lw=2.2, color=colour)
                whose = "" if roof is roofs[0] else ", " + charts.label(roof.name, 16)
                _mark(ax, f"{dtype}{whose}: {top / 1e9:,.0f}", top, colour, bold=True)
        charts.plain(ax, "x")
        charts.plain(ax, "y")
        ax.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="GFLOP/s", xlim=(_X[0], _X[-1]))

    return charts.Chart(title, alt, draw, parts.source("accelerators"), height=4.6, narrow=4.8)


def _mark(ax: "Axes", words: str, top: float, colour: str, bold: bool = False) -> None:
    weight = "bold" if bold else "normal"
    ax.annotate(words, (_X[-1], top / 1e9), xytext=(-2, 3), textcoords="offset points", ha="right", fontsize=8.5,
                color=colour, fontweight=weight)  # fmt: skip


def _words(roof: Roof) -> str:
    tops = ", ".join(f"{dtype} {top / 1e9:,.0f}" for dtype, top in roof.flop_per_s.items())
    return f"{roof.name}: slope {roof.bytes_per_s / 1e9:.3g} GB/s, ceilings in GFLOP/s {tops}"


def _accelerators() -> list[Roof]:
    return [
        Roof(row["accelerator"], 1e9 * float(row["memory_gbyte_per_s"]), {kind: 1e12 * float(row[column])})
        for row in plots.reference("accelerators")
        for kind, column in [(_tensor(row), "tensor_tflop_per_s")]
    ]


def _tensor(row: Mapping[str, str]) -> str:
    return "fp16" if "V100" in row["accelerator"] else "bf16"


def _rates(known: peaks.Peaks | None) -> str:
    rows = [] if known is None else list(known.figures().items())
    return parts.folded(
        "Every rate that was measured", parts.table(("what", "# best", "# median", "how"), map(_rate, rows))
    )


def _rate(row: tuple[str, Any]) -> tuple[str, ...]:
    name, figure = row
    if not figure:
        return name, machine.UNKNOWN, "", ""
    return name, timing.rate(figure.best, figure.unit), timing.rate(figure.median, figure.unit), figure.how


def _published(roof: Roof | None) -> str:
    """The data sheets, and how many times this machine that is."""
    head = ("accelerator, published", "# products", "# memory", "# ridge, FLOP per byte", "# times this machine")
    rows = []
    for other in _accelerators():
        dtype, top = other.best
        factor = f"{top / roof.best[1]:,.0f} ×" if roof else "–"
        rows.append((other.name, f"{timing.rate(top, 'FLOP/s')} {dtype}", timing.rate(other.bytes_per_s, "B/s"),
                     f"{other.ridge(dtype):.0f}", factor))  # fmt: skip
    return parts.table(head, rows)
