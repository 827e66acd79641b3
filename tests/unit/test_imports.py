import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dltutorial

PACKAGE = Path(dltutorial.__file__).parent
# A module may import what stands before it, and its own layer.
ORDER = [
    {"errors", "advice", "paths"},
    {"one_line_errors"},
    {"limits", "ranks", "node", "machine", "config"},
    {"record", "reference"},
    {"profile"},
    {"data", "models", "optim", "step"},
    {"launch"},
    {"parallel"},
    {"science"},
    {"distributed"},
    {"checkpoint", "train_options", "stop_signal"},
    {"train"},
    {"scaling"},
    {"convergence"},
    {"course"},
    {"cli", "__main__"},
]
LAYER = {name: number for number, names in enumerate(ORDER) for name in names}
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def imported_parts(tree: ast.AST):
    """Names of the course's own top-level modules that a file imports, lazily or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dltutorial":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("dltutorial."))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_in_one_direction(file):
    part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for other in imported_parts(ast.parse(file.read_text())):
        if other == "__version__":
            continue
        assert LAYER[other] <= LAYER[part], f"{part} must not import {other}"


@pytest.mark.parametrize(
    "code",
    [
        "import dltutorial",
        "import dltutorial.machine, dltutorial.config, dltutorial.paths",
        "from dltutorial.cli import make_parser; make_parser()",
    ],
)
def test_importing_the_course_loads_no_large_package(code):
    code += "; import sys; print(sorted({'torch', 'numpy', 'h5py', 'matplotlib', 'papermill'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done.stderr
