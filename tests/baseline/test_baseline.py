"""Nothing goes silently: what version 0.5.0 claimed, accepted, rejected and offered is here, or the CHANGELOG says why.

The tables beside this file were made from version 0.5.0. In the CHANGELOG the newest section names what is gone or
reworded by its first words in double quotes (claims, answers) or as `dltutorial …` (commands).
"""

import csv
import shlex

import pytest
import stated

from dltutorial.cli import make_parser
from dltutorial.course import bench

HERE = stated.ROOT / "tests" / "baseline"
_CHANGES = (stated.ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
TOLD = " ".join(_CHANGES.split())


def table(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def told(text: str) -> bool:
    """Whether the CHANGELOG's newest section quotes the text, or at least its first 30 characters."""
    return f'"{text[:30]}' in TOLD


@pytest.mark.parametrize("chapter", sorted({row["chapter"] for row in table("claims.csv")}))
def test_every_claim_is_made_or_told(chapter):
    made = {text for number, text in stated.claims() if number == chapter}
    rows = [row["claim"] for row in table("claims.csv") if row["chapter"] == chapter]
    assert [text for text in rows if text not in made and not told(text)] == []


def test_every_answer_is_known_or_told():
    known = set(stated.answers())
    rows = [tuple(row.values()) for row in table("answers.csv")]
    assert [row for row in rows if row not in known and not told(row[2])] == []


@pytest.mark.parametrize("command", [row["command"] for row in table("commands.csv")])
def test_every_command_is_there_or_told(command):
    words = shlex.split(command)
    if not _is_there(words):
        assert f"`dltutorial {' '.join(words[:2])}" in TOLD


def _is_there(words: list[str]) -> bool:
    try:
        make_parser().parse_args(words)
    except SystemExit:
        return False
    return words[0] != "bench" or words[1] in bench.BENCHES
