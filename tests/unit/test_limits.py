"""The library stays small and readable: figures that may only fall, and rules for names.

``tests/limits.json`` holds the highest value that is allowed for each figure. If you make a figure smaller, lower its
limit there. ``python tests/unit/test_limits.py`` prints today's figures. The key "words" is that of ``test_words.py``.

    tokens                    of all Python files of ``dltutorial/``, without comments, docstrings and line ends
    tokens_per_code_line      lines that hold a token are code lines
    complex_functions         functions whose complexity (McCabe's: 1 + the number of branches) is above 12
    fmt_skips                 ``# fmt: skip``, which keeps lines packed
    expression_statements     conditional expressions that stand as a statement
"""

import ast
import collections
import functools
import io
import json
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dltutorial"
FILES = sorted(PACKAGE.rglob("*.py"))
LIMITS = json.loads((ROOT / "tests" / "limits.json").read_text(encoding="utf-8"))
LIMITS.pop("words", None)  # those of test_words.py
MOST_COMPLEX = 12
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.Assert, ast.match_case)


def docstring_lines(tree: ast.Module) -> set[int]:
    """The numbers of the lines on which docstrings stand."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines |= set(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def complexity(function: ast.AST) -> int:
    """1, one more for each branch, and one more for each further operand of ``and`` and ``or``."""
    nodes = list(ast.walk(function))
    branches = sum(isinstance(node, BRANCHES) for node in nodes)
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + branches + operands


def count(source: str) -> collections.Counter:
    """The figures of one file, and its number of code lines."""
    tree = ast.parse(source)
    docstrings = docstring_lines(tree)
    figures = collections.Counter(fmt_skips=source.count("# fmt: skip"))
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE and token.start[0] not in docstrings:
            figures["tokens"] += 1
            code_lines |= set(range(token.start[0], token.end[0] + 1))
    figures["code_lines"] = len(code_lines)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            figures["complex_functions"] += complexity(node) > MOST_COMPLEX
        figures["expression_statements"] += isinstance(node, ast.Expr) and isinstance(node.value, ast.IfExp)
    return figures


@functools.cache
def figures_of_library() -> dict[str, float]:
    """The figures of all files together."""
    total: collections.Counter = collections.Counter()
    for file in FILES:
        total.update(count(file.read_text(encoding="utf-8")))
    figures = {name: total[name] for name in LIMITS if name != "tokens_per_code_line"}
    return {**figures, "tokens_per_code_line": round(total["tokens"] / total["code_lines"], 2)}


@pytest.mark.parametrize("name", LIMITS)
def test_a_figure_of_the_library_has_not_grown(name):
    assert figures_of_library()[name] <= LIMITS[name]


def test_no_two_public_classes_have_one_name():
    names = collections.Counter(
        node.name
        for file in FILES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1] == []


if __name__ == "__main__":
    print(json.dumps(figures_of_library(), indent=4))
