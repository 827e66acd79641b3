"""The glossary: sorted, no term twice, no link that leads nowhere, and every term is met where it says."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma"}


def entries():
    """(spellings, definition) of each term, in order."""
    (block,) = re.findall(r"^```\{glossary\}\n(.*?)^```", PAGE, re.S | re.M)
    for lines in (part.splitlines() for part in re.split(r"\n\n+", block.strip("\n"))):
        yield [line for line in lines if not line.startswith(" ")], " ".join(x.strip() for x in lines if x[0] == " ")


ENTRIES = list(entries())
NAMES = [name.lower() for names, _ in ENTRIES for name in names]


@cache
def words_of(notebook):
    cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
    return " ".join("".join(cell["source"]) for cell in cells).lower()


def test_a_blank_line_stands_before_each_term():
    (block,) = re.findall(r"^```\{glossary\}\n(.*?)^```", PAGE, re.S | re.M)
    assert re.findall(r"^ .*\n(\S.*)", block, re.M) == []


def test_terms_are_sorted_and_none_stands_twice():
    first = ["".join(GREEK.get(sign, sign) for sign in names[0].lower()) for names, _ in ENTRIES]
    keys = [re.sub(r"[^a-z0-9]+", " ", name).strip() for name in first]
    assert keys == sorted(keys)
    assert len(NAMES) == len(set(NAMES))
    assert len(ENTRIES) >= 90


@pytest.mark.parametrize(("names", "definition"), ENTRIES, ids=[names[0] for names, _ in ENTRIES])
def test_a_term_is_defined_briefly_and_met_where_it_says(names, definition):
    notebook = re.search(r" → \[Chapter (\d\d)\]\(\.\./(notebooks/(\d\d)_\w+\.ipynb)\)$", definition)
    assert notebook, "its definition ends with a link to its chapter"
    assert notebook[1] == notebook[3]
    met = words_of(notebook[2])  # fails where there is no such notebook
    assert any(re.search(rf"(?<!\w){re.escape(name.lower())}", met) for name in names)
    said = definition[: notebook.start()]
    assert 20 < len(said) < 420
    assert re.search(r"[.;)]$", said)


def test_links_between_terms_lead_somewhere():
    used = re.findall(r"\{term\}`([^`]+)`", PAGE)
    assert used
    assert {name.lower() for name in used} <= set(NAMES)


def test_what_chapters_promise_is_explained():
    """Words of the trade in the "You will learn" cells have an entry."""
    trade = (
        "bottleneck", "timeline", "throughput", "graph break", "recompilation", "launch-bound", "collective", "ring",
        "tree", "server", "α, β and γ", "deadlock", "latency", "bandwidth", "bucket", "rank", "sbatch", "overlap",
        "straggler", "lanczos", "sharpness", "lars", "lamb", "post-local sgd", "mlperf hpc", "vision transformer",
    )  # fmt: skip
    promised = ""
    for notebook in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        cells = ("".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"])
        promised += "".join(source.partition("## You will learn")[2].lower() for source in cells)
    assert not [word for word in trade if word not in promised]  # none of them is dead
    assert not set(trade) - set(NAMES)
