"""``dltutorial bench explorers``: what a move of a slider costs, until the new picture is ready to be sent.

In: how often. Out: seconds a move for every explorer, each of whose controls goes through all its marked positions;
beside them the budget of 0.1 s, after which an answer no longer seems immediate. What a browser then needs to show the
picture is not in it.
"""

from collections.abc import Callable, Iterator
from itertools import cycle

from dltutorial.course.bench_rows import Options, Row
from dltutorial.course.explorers.parts import Explorer

_BUDGET_S = 0.1


def explorers(options: Options) -> Iterator[Row]:
    """One row for each explorer; they take turns."""
    from dltutorial.course.explorers import examples
    from dltutorial.profile.timing import alternate

    found = dict(examples())
    timings = alternate({name: _moves(explorer) for name, explorer in found.items()}, options.repeats, device="cpu")
    for name, timing in timings.items():
        size = len(found[name].picture().html)
        more = {"controls": str(len(found[name].controls)), "kB": f"{size / 1e3:.0f}"}
        yield Row(f"{name}: a move", timing.samples_s, budget=_BUDGET_S, more=more)


def _moves(explorer: Explorer) -> Callable[[], object]:
    """A function that moves one control on by one position and draws."""
    stops = cycle([(name, value) for name, each in explorer.controls.items() for value in each.positions()])

    def move() -> object:
        name, value = next(stops)
        explorer.widgets[name].value = value
        return explorer.picture()

    return move
