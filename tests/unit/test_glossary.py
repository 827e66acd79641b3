"""The glossary is sorted, holds no term twice and no dead link, and each chapter that it names uses the term."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
LINK = re.compile(r" → \[Chapter (\d\d)(?:, further)?\]\(\.\./(notebooks/(?:further/)?(\d\d)_\w+\.ipynb)\)$")
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma"}


def entries():
    """(spellings, definition) of each term, in order."""
    (block,) = re.findall(r"^:::\{glossary\}\n(.*?)^:::", PAGE, re.S | re.M)
    for lines in (part.splitlines() for part in re.split(r"\n\n+", block.strip("\n"))):
        yield [line for line in lines if not line.startswith(" ")], " ".join(x.strip() for x in lines if x[0] == " ")


ENTRIES = list(entries())
NAMES = [name.lower() for names, _ in ENTRIES for name in names]


@cache
def words_of(notebook):
    cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
    return " ".join("".join(cell["source"]) for cell in cells).lower()


def test_a_blank_line_stands_before_each_term():
    (block,) = re.findall(r"^:::\{glossary\}\n(.*?)^:::", PAGE, re.S | re.M)
    assert re.findall(r"^ .*\n(\S.*)", block, re.M) == []


def test_terms_are_sorted_and_none_stands_twice():
    first = ["".join(GREEK.get(sign, sign) for sign in names[0].lower()) for names, _ in ENTRIES]
    keys = [re.sub(r"[^a-z0-9]+", " ", name).strip() for name in first]
    assert keys == sorted(keys)
    assert len(NAMES) == len(set(NAMES))
    assert len(ENTRIES) >= 90


@pytest.mark.parametrize(("names", "definition"), ENTRIES, ids=[names[0] for names, _ in ENTRIES])
def test_a_term_is_defined_briefly_and_used_in_the_chapter_that_it_names(names, definition):
    notebook = LINK.search(definition)
    assert notebook, "its definition ends with a link to its chapter"
    assert notebook[1] == notebook[3]
    text = words_of(notebook[2])  # fails where there is no such notebook
    assert any(re.search(rf"(?<!\w){re.escape(name.lower())}", text) for name in names)
    explanation = definition[: notebook.start()]
    assert 20 < len(explanation) < 420
    assert re.search(r"[.;)]$", explanation)


def test_links_between_terms_lead_somewhere():
    used = re.findall(r"\{term\}`([^`]+)`", PAGE)
    assert used
    assert {name.lower() for name in used} <= set(NAMES)
