"""What the executed chapters show.

``make test`` executes four chapters and ``.ci/run`` the others, each once, by ``dltutorial run``. Their results are in
``artifacts/chapters/first`` and ``artifacts/chapters/rest``. These tests read them, and so does the test of the book.
"""

import json
from pathlib import Path

import pytest
from folders import ARTIFACTS, ROOT, skip_unless_required

from dltutorial.course import notebooks, runner

CHAPTERS = notebooks.chapters(ROOT / "notebooks")
FIRST = ("00", "01", "08", "09")
PEAK_BYTES = 3e9
MOST_OTHERWISE = 0.1  # the share of measurements that may come out otherwise on this machine
FEWEST = 50  # measurements from which that share is taken, if there are fewer
# A chapter may leave its runs, the files that its cells write, and what Python makes of them.
LEFT_BY_ALL = {"runs", "__pycache__"}

every_chapter = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if notebooks.number(path) in FIRST else pytest.mark.ci, id=notebooks.place(path))
        for path in CHAPTERS
    ],
)


def folder_of(path: Path) -> Path:
    """The folder of the run that executed this chapter."""
    folder = ARTIFACTS / "chapters" / ("first" if notebooks.number(path) in FIRST else "rest")
    if not (folder / "run.json").is_file():
        skip_unless_required("chapters", "this chapter was not executed: make test executes it")
    return folder


def read_row(path: Path) -> dict:
    """What the run says of this chapter."""
    rows = json.loads((folder_of(path) / "run.json").read_text(encoding="utf-8"))["chapters"]
    (row,) = [row for row in rows if row["notebook"] == notebooks.place(path)]
    return row


@every_chapter
def test_a_chapter_finishes_with_its_claims_within_3_gb(path):
    row = read_row(path)
    assert row["error"] == ""
    assert row["status"] == "finished"
    assert row["claims"].get("failed", 0) == 0
    assert row["claims"].get("shown", 0) >= 1
    assert sum(row["claims"].values()) >= (1 if path.parent.name == "further" else 3)
    assert 30e6 < row["peak_bytes"] <= PEAK_BYTES


@every_chapter
def test_a_chapter_leaves_no_file_beside_the_learners(path):
    work = folder_of(path) / "work" / notebooks.number(path)
    names = {file.name for file in work.iterdir() if file.suffix not in (".py", ".sbatch")}
    assert names - LEFT_BY_ALL - set(notebooks.written(path)) == set()


@pytest.mark.parametrize("part", ["first", pytest.param("rest", marks=pytest.mark.ci)])
def test_few_measurements_come_out_otherwise(part):
    chapters = [path for path in CHAPTERS if (notebooks.number(path) in FIRST) == (part == "first")]
    claims = runner.read_claims(folder_of(chapters[0]))
    measured = [claim for of_chapter in claims.values() for claim in of_chapter if claim["measured"]]
    otherwise = [claim for claim in measured if claim["status"] == "different here"]
    lines = [f"{claim['chapter']}: {claim['what']} ({claim['evidence']})" for claim in otherwise]
    assert len(otherwise) <= MOST_OTHERWISE * max(FEWEST, len(measured)), "\n".join(lines)
