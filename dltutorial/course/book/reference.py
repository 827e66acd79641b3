"""The pages of the library's reference: one for each module, gathered by layer, in the order in which layers import.

In: the package's files; nothing is imported here. Out: reStructuredText, whose ``automodule`` lines Sphinx fills from
the docstrings (www.sphinx-doc.org/en/master/usage/extensions/autodoc.html).
"""

import ast
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
# Each layer imports from those above it: tests/unit/test_imports.py.
LAYERS = (
    *("record", "reference", "profile", "data", "models", "optim", "train"),
    *("launch", "comm", "parallel", "scaling", "convergence"),
    "course",
)
_FOUNDATIONS = ("errors", "paths", "limits", "ranks", "machine", "config")


def modules(package: Path = PACKAGE) -> list[str]:
    """The names of all public modules and packages, by layer: foundations first, the command line last."""
    found = [name for file in sorted(package.rglob("*.py")) if (name := _name(file, package))]
    return sorted(found, key=lambda name: (_place(name), name))


def pages(package: Path = PACKAGE) -> dict[str, str]:
    """File name → text of every page of the reference, ``index.rst`` among them."""
    names = modules(package)
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(_layer(name), []).append(name)
    made = {f"{name}.rst": _page(name, package) for name in names}
    for layer, inside in layers.items():
        made[f"{layer}.rst"] = _layer_page(layer, inside, package)
    made["index.rst"] = _index(layers)
    return made


def first_sentence(name: str, package: Path = PACKAGE) -> str:
    """What a module says of itself, up to the first full stop that ends a sentence; on one line."""
    text = ast.get_docstring(ast.parse(_file(name, package).read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    head, stop, _ = paragraph.partition(". ")
    return head + "." if stop else paragraph


def _name(file: Path, package: Path) -> str:
    """The dotted name of a public module; empty for a private one and for the package itself."""
    parts = [package.name, *file.relative_to(package).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return "" if len(parts) == 1 or any(part.startswith("_") for part in parts) else ".".join(parts)


def _file(name: str, package: Path) -> Path:
    path = package.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _layer(name: str) -> str:
    part = name.split(".")[1]
    return part if part in LAYERS else "command_line" if part == "cli" else "foundations"


def _place(name: str) -> tuple[int, int]:
    layer, part = _layer(name), name.split(".")[1]
    order = ("foundations", *LAYERS, "command_line")
    return order.index(layer), _FOUNDATIONS.index(part) if part in _FOUNDATIONS else len(_FOUNDATIONS)


def _page(name: str, package: Path) -> str:
    """A package lists what it defines itself; what it hands on has its own module's page."""
    own = "   :ignore-module-all:\n" if _file(name, package).name == "__init__.py" else ""
    return f"{_heading(name.partition('.')[2])}\n.. automodule:: {name}\n{own}"


def _layer_page(layer: str, names: list[str], package: Path) -> str:
    """The modules of a layer, each with what it says of itself."""
    inside = [name for name in names if name.count(".") > 1 or layer in ("foundations", "command_line")]
    about = [first_sentence(name, package) + "\n" for name in names if name not in inside]
    listed = [f":doc:`{name.partition('.')[2]} <{name}>`\n   {first_sentence(name, package)}\n" for name in inside]
    return "\n".join([_heading(_title(layer)), *about, *listed, _toctree(names)])


def _index(layers: dict[str, list[str]]) -> str:
    about = (
        "Every public module of the library, from its own docstrings. A layer imports only from those above it: "
        "foundations know nothing of training, training knows nothing of ranks."
    )
    return "\n".join([_heading("The library"), about, "", _toctree(layers, depth=1, hidden=False)])


def _toctree(names: Iterable[str], depth: int = 1, hidden: bool = True) -> str:
    lines = [".. toctree::", f"   :maxdepth: {depth}", *(["   :hidden:"] if hidden else []), ""]
    return "\n".join([*lines, *(f"   {name}" for name in names)]) + "\n"


def _title(layer: str) -> str:
    return {"foundations": "Foundations", "command_line": "The command line"}.get(layer, layer)


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"
