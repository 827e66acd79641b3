"""Run a notebook of ``pages/`` in this process. This is quick, and the test can call its functions."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import IPython.display

PAGES = Path(__file__).parents[2] / "pages"


class Displayed(list):
    """What the cells displayed, as HTML, in order. An updated display stays at its place."""

    def display(self, thing, display_id=False):
        self.append(str(getattr(thing, "data", thing)))
        return SimpleNamespace(update=functools.partial(self._update, len(self) - 1))

    def _update(self, index, thing):
        self[index] = thing.data


def run(monkeypatch, name, **parameters):
    """Run the cells of a notebook with these parameters.

    Returns:
        The names that the cells define. ``names["displayed"]`` is what they displayed.
    """
    displayed = Displayed()
    names = {"__name__": "__main__"}
    monkeypatch.setattr(IPython.display, "display", displayed.display)
    for cell in json.loads((PAGES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            names.update(parameters)
    return names | {"displayed": displayed}
