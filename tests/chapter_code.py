"""The functions and classes that a chapter defines in its cells and scripts, without its measurements."""

import ast
import functools
import json
import re
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def written(chapter, /, *names, **known):
    """Define functions and classes of a chapter.

    Args:
        chapter: its number, such as "09".
        names: the functions and classes. A name that no cell defines is taken from the scripts that the chapter writes.
        known: names that the functions use, and their values.

    Returns:
        A dictionary with the imports of the chapter, the functions and classes, and what is ``known``.
    """
    (file,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    statements = []
    for source in sources:
        if not source.startswith("%%"):
            statements += ast.parse(without_magics(source)).body
    in_cells = {name_of(statement) for statement in statements} - {None}
    for source in sources:
        if re.match(r"%%writefile .*\.py", source):
            script = ast.parse(source.partition("\n")[2]).body
            if (set(names) - in_cells) & {name_of(statement) for statement in script}:
                statements += [statement for statement in script if name_of(statement) not in in_cells]
    imports = [statement for statement in statements if is_import_of_a_package(statement)]
    definitions = [statement for statement in statements if name_of(statement) in names]
    assert {name_of(statement) for statement in definitions} == set(names), f"chapter {chapter} lacks some of {names}"
    namespace = {"__name__": "__main__"} | known
    exec(compile(ast.Module([*imports, *definitions], []), file.name, "exec"), namespace)
    return namespace


def without_magics(source):
    """Replace the lines that IPython alone understands by ``pass``."""
    return re.sub(r"^(\s*)(?:\w+ = )?[!%].*", r"\1pass", source, flags=re.MULTILINE)


def name_of(statement):
    """Return the name of a function or class, and None for another statement."""
    return getattr(statement, "name", None)


def is_import_of_a_package(statement):
    """Return whether a statement imports something else than a script that a chapter writes."""
    if isinstance(statement, ast.Import):
        return all(alias.name not in scripts_of_chapters() for alias in statement.names)
    return isinstance(statement, ast.ImportFrom) and statement.module not in scripts_of_chapters()


@functools.cache
def scripts_of_chapters():
    """Return the names of all scripts that chapters write, without ``.py``."""
    texts = [file.read_text(encoding="utf-8") for file in NOTEBOOKS.glob("**/[0-9]*.ipynb")]
    return {name for text in texts for name in re.findall(r'"%%writefile (\w+)\.py', text)}
