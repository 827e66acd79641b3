"""Every notebook follows the rules of the course. Nothing is executed here."""

import ast
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dltutorial.course import notebooks
from dltutorial.course.execute import quick_imports

ROOT = Path(__file__).parents[2]
ALL = [path for folder in ("notebooks", "solutions", "exercises") for path in notebooks.chapters(ROOT / folder)]
CHAPTERS = [path for path in ALL if path.parent.name == "notebooks"]
FURTHER = [path for path in ALL if path.parent.name == "further"]
WORDS = 2600  # of the text without headings, tables and code
CELLS = 52
CODE_LINES = 32  # of a cell
SCRIPT_LINES = 83  # of a file that a cell writes, without blank lines
# The limits of a core chapter.
CORE_CELLS = 42
CORE_VISIBLE_LINES = 205  # of all cells together, without blank lines and without files that the cells write
CORE_CLAIMS = range(3, 7)
FURTHER_VISIBLE_LINES = 300
every_notebook = pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
every_further = pytest.mark.parametrize("path", FURTHER, ids=notebooks.place)
every_chapter_and_more = pytest.mark.parametrize("path", CHAPTERS + FURTHER, ids=notebooks.place)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code(path, folded=True):
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells if folded or not is_folded(cell)]


def is_folded(cell):
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)


def prose(path):
    """The text of a notebook without code, tables and headings."""
    cells = read(path)["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^(\||#).*$", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)


def visible_lines(path):
    """The number of lines of code that a reader sees, without blank lines and files that the cells write."""
    sources = [source for source in code(path, folded=False) if not source.startswith(notebooks.WRITES)]
    return sum(bool(line.strip()) for source in sources for line in source.splitlines())


def links(path):
    """Where the links and pictures of a notebook's text lead, in their order."""
    texts = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    return [target for text in texts for target in re.findall(r"\]\(([^)\s]+)\)", text)]


def written_files():
    """(name, text, notebook) of each Python file that a chapter or a solution writes."""
    for path in ALL:
        if path.parent.name != "exercises":
            for name, text in notebooks.written(path).items():
                if name.endswith(".py"):
                    yield name, text, path


@every_notebook
def test_a_notebook_is_valid_with_ids_and_without_outputs(path):
    quick_imports()
    import nbformat

    notebook = read(path)
    nbformat.validate(notebook)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert "widgets" not in notebook["metadata"]
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


@every_notebook
def test_the_first_code_cell_holds_the_parameters(path):
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    tagged = ["parameters" in cell["metadata"].get("tags", ()) for cell in cells]
    assert tagged == [True] + [False] * (len(cells) - 1)
    assert "".join(cells[0]["source"]).startswith('preset = "auto"')


@every_notebook
def test_every_link_to_a_file_leads_to_one(path):
    for target in links(path):
        if not re.match(r"[a-z]+:|#", target):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize(
    ("path", "following"), list(itertools.pairwise(CHAPTERS)), ids=lambda path: path.stem.partition("_")[0]
)
def test_a_chapter_ends_with_a_link_to_the_next(path, following):
    last = "".join(read(path)["cells"][-1]["source"]).splitlines()[-1]
    assert last.startswith(("- Next: [", "Next: ["))
    assert links(path)[-1] == following.name


@every_notebook
def test_a_notebook_keeps_to_its_limits(path):
    if path not in FURTHER:
        assert len(prose(path).split()) <= WORDS
        assert len(read(path)["cells"]) <= CELLS
    for source in code(path, folded=False):
        if source.startswith(notebooks.WRITES):
            lines = [line for line in source.splitlines()[1:] if line.strip() and not line.endswith(" SOLUTION")]
            assert len(lines) <= SCRIPT_LINES
        else:
            assert source.count("\n") + 1 <= CODE_LINES


@every_chapter
def test_a_chapter_is_short(path):
    assert len(read(path)["cells"]) <= CORE_CELLS
    assert visible_lines(path) <= CORE_VISIBLE_LINES
    assert len(re.findall(r"\bclaim\(", "\n".join(code(path)))) in CORE_CLAIMS


@every_further
def test_a_further_notebook_shows_little_code(path):
    assert visible_lines(path) <= FURTHER_VISIBLE_LINES


@every_chapter_and_more
def test_each_drawing_has_a_text_that_replaces_it(path):
    texts = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    drawings = [alt for text in texts for alt in re.findall(r"!\[([^]]*)\]\([^)]*\.svg\)", text)]
    assert all(len(alt.split()) > 10 for alt in drawings)
    if path not in FURTHER:
        assert drawings


@every_notebook
def test_a_notebook_imports_no_stars(path):
    for source in code(path):
        for node in ast.walk(ast.parse(TransformerManager().transform_cell(source))):
            if isinstance(node, ast.ImportFrom):
                assert [alias.name for alias in node.names] != ["*"]


@every_chapter_and_more
def test_a_chapter_says_its_number_and_what_it_takes(path):
    about = read(path)["metadata"]["dltutorial"]
    assert about["chapter"] == notebooks.number(path)
    assert about["minutes"] > 0
    assert 0 < about["smoke_s"] <= 60
    assert isinstance(about["measures_time"], bool)


@every_chapter_and_more
def test_a_chapter_uses_its_number_for_its_records(path):
    (number,) = re.findall(r'Chapter\("([\w-]+)"', "\n".join(code(path)))
    assert number == notebooks.number(path)


@every_chapter_and_more
def test_a_folded_cell_is_folded_everywhere(path):
    for cell in read(path)["cells"]:
        assert is_folded(cell) == ("hide-input" in cell["metadata"].get("tags", ())), "".join(cell["source"])


@every_chapter
def test_the_card_has_the_minutes_of_the_metadata(path):
    notebook = read(path)
    about = notebook["metadata"]["dltutorial"]
    card = "".join(notebook["cells"][0]["source"])
    minutes = re.findall(r"\| (?:Reading|Doing|Exercise) \| (\d+) minutes", card)
    if not minutes:
        (minutes,) = re.findall(r"(\d+) reading, (\d+) doing, (\d+) exercise", card)
    reading, doing, exercise = map(int, minutes)
    assert reading + doing == about["minutes"]
    assert exercise == about["exercise_min"]


def test_written_files_need_nothing_of_the_course_and_are_in_the_house_style(tmp_path):
    """A learner takes these files along, so they are plain PyTorch."""
    texts = {}
    for name, text, path in written_files():
        assert "dltutorial" not in text, (path, name)
        texts.setdefault(name, text)
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ruff = Path(sys.executable).parent / "ruff"
    config = ["--config", ROOT / "notebooks" / ".ruff.toml"]
    for command in (["check", "--extend-ignore", "D1"], ["format", "--check", "--diff"]):
        done = subprocess.run([ruff, *command, *config, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_two_chapters_write_one_name_only_if_they_write_the_same():
    texts = {}
    for name, text, path in written_files():
        if path in CHAPTERS + FURTHER:
            assert texts.setdefault(name, text) == text, f"{name} differs between chapters: give it another name"
