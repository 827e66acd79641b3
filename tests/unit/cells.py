"""A notebook of ``pages/`` run in this process: quick, and its functions are at hand."""

import functools
import json
from pathlib import Path

import IPython.display

PAGES = Path(__file__).parents[2] / "pages"


class Shown(list):
    """What the cells displayed, as HTML, in order; a display that is updated keeps its place."""

    def display(self, thing, display_id=False):
        self.append(str(getattr(thing, "data", thing)))
        handle = type("Handle", (), {})()
        handle.update = functools.partial(self._update, len(self) - 1)
        return handle

    def _update(self, place, thing):
        self[place] = thing.data


def run(monkeypatch, name, until=None, undrawn=(), **parameters):
    """The names that the cells leave; ``names["shown"]`` is what they displayed.

    until: a word of the first cell that is not run. undrawn: functions that draw, and are to draw nothing.
    """
    shown, names = Shown(), {"__name__": "__main__"}
    monkeypatch.setattr(IPython.display, "display", shown.display)
    for cell in json.loads((PAGES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if until and until in source:
            break
        if cell["cell_type"] == "code":
            exec(compile(source, f"{name}.ipynb", "exec"), names)
            names.update(parameters if "parameters" in cell["metadata"].get("tags", ()) else {})
            names.update({one: lambda *of, **more: "<svg></svg>" for one in undrawn if one in names})
    return names | {"displayed": shown}
