"""What a chapter writes in its cells and scripts: its functions and classes, without the measurements around them."""

import ast
import json
import re
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def written(chapter, /, *names, **known):
    """The imports of a chapter and these of its functions and classes, by name, beside what is ``known``.

    What no cell defines is looked for in the Python files that the chapter writes.
    """
    (file,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    files = [source for source in sources if source.startswith("%%writefile")]
    sources = [re.sub(r"^(\s*)(?:\w+ = )?[!%].*", r"\1pass", source, flags=re.MULTILINE) for source in sources
               if not source.startswith("%%")]  # fmt: skip
    parts = [part for source in sources for part in ast.parse(source).body]
    in_cells = {part.name for part in parts if hasattr(part, "name")}
    scripts = [ast.parse(source.partition("\n")[2]).body for source in files if ".py" in source.partition("\n")[0]]
    for script in scripts:
        if (set(names) - in_cells) & {getattr(part, "name", None) for part in script}:
            parts += [part for part in script if getattr(part, "name", None) not in in_cells]
    # What it imports of scripts, its own or an earlier chapter's, stays out.
    own = {
        name for every in NOTEBOOKS.glob("*.ipynb") for name in re.findall(r'"%%writefile (\w+\.py)', every.read_text())
    }
    imports = [part for part in parts if isinstance(part, (ast.Import, ast.ImportFrom))
               and f"{getattr(part, 'module', '')}.py" not in own]  # fmt: skip
    defined = [part for part in parts if getattr(part, "name", None) in names]
    assert {part.name for part in defined} == set(names), f"chapter {chapter} does not write all of {names}"
    space = {"__name__": "__main__"} | known
    exec(compile(ast.Module([*imports, *defined], []), file.name, "exec"), space)
    return space
