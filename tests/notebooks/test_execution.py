"""Every notebook of the course runs, as ``dltutorial run`` runs it, and is made as the course makes notebooks."""

import ast
import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from executing import executed
from IPython.core.inputtransformer2 import TransformerManager
from measurements import ALONE, BESIDE, FOUND, OTHERWISE

from dltutorial import paths
from dltutorial.course import notebooks, runner, scripts
from dltutorial.course.execute import quick_imports

ROOT = Path(__file__).parents[2]
FOLDERS = ("notebooks", "solutions", "exercises")
ALL = [path for folder in FOLDERS for path in notebooks.chapters(ROOT / folder)]
CHAPTERS = [path for path in ALL if path.parent.name == "notebooks"]
PEAK_BYTES = 3e9
WORDS, CELLS, CODE_LINES, CODE_IN_A_ROW = 1650, 52, 32, 2  # the longest cells write out what they teach
SCRIPT_LINES = 80  # of a file that a cell writes, blank ones apart
OUTSIDE = re.compile(r"""(?<![\w.:/<])(/(home|root|work|tmp|Users|mnt|var|opt|scratch|pscratch|global)/|[A-Z]:\\)""")

# What code may name only within a folder: files of data, what --out and --trace take, what is opened or removed.
DATA = re.compile(r"(?!{[^}]*}/|{args\.)[\w{}./-]*[\w}]\.(bin|csv|db|h5|json|log|np[yz]|pkl|png|pt2?|sqlite|svg|txt)")
GIVEN = re.compile(r"--(?:out|trace) +([\w.][^\s\"']*)")
OPENS = {"Path", "open", "File", "SummaryWriter", "rmtree", "makedirs", "mkdir", "chdir", "remove", "unlink", "rename"}

_LEAVE = [*range(1, 5), 6, 7, *range(9, 18), 20, *range(22, 26)]
LEAVE_FILES = {f"notebooks/{number:02}" for number in _LEAVE}
# The chapters with a measurement that was otherwise beside other tests; None where there are none beside.
_SESSION = os.environ.get("PYTEST_XDIST_TESTRUNUID")
OTHERWISE_BESIDE = ROOT / "artifacts" / "otherwise" / _SESSION if _SESSION else None
SECOND_RUN = ("notebooks/10",)  # a training that finds its checkpoints

# What make test has time for: Part I. The other chapters run in make test-all; and there exercises and
# solutions run as whole notebooks, whose blanks and answers meet their checks in tests/exercises.
SOON = [path for path in CHAPTERS if path.stem < "08"]
to_be_run = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.ci] * (path not in SOON)) for path in ALL],
    ids=[f"{path.parent.name}/{path.stem}" for path in ALL],
)
every_notebook = pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def run(path, folder, env):
    """Run in ``folder/work``; an error, as any fact that does not hold, fails the test. Returns result and claims."""
    shutil.rmtree(folder / "records", ignore_errors=True)
    (work := folder / "work").mkdir(exist_ok=True)
    env = runner.environment("smoke", folder) | env
    mine = learners_files(path, work)
    result = executed(path, folder / path.name, work, env=env, timeout_s=600)
    assert result.error == "", f"{path.name}, cell {result.cell}: {result.error}"
    kept = {name for name in mine if (work / name).is_file() and (work / name).read_bytes() == f"my {name}".encode()}
    assert mine - kept == set(), "replaced or removed"
    left = {file.name for file in work.iterdir() if file.suffix != ".py"} - mine
    left -= {"__pycache__", "runs", *scripts.written(path)}
    assert left == set(), "beside the notebook; what it writes goes into a folder made for this sitting"
    claims = runner.read_claims(folder)
    assert set(claims) == ({path.stem[:2]} if path in CHAPTERS else set())
    claims = claims.get(path.stem[:2], [])
    assert [f"{claim['what']} ({claim['evidence']})" for claim in claims if claim["status"] == "failed"] == []
    return result, claims


def otherwise(claims):
    """What was measured and came out otherwise, with its evidence."""
    return [f"{claim['what']} ({claim['evidence']})" for claim in claims if claim["status"] == "otherwise"]


def learners_files(path, work):
    """A file of the learner's for each word in the code of a notebook and of the scripts that it names."""
    own = "\n".join(code(path))
    texts = [text for chapter in CHAPTERS for name, text in scripts.written(chapter).items() if name in own]
    words = {word for word in re.findall(r"\w[\w.-]*", "\n".join([own, *texts])) if len(word) < 100}
    names = {word for word in words if not word.endswith(".py")} - {"runs", *scripts.written(path)}
    for name in names:
        (work / name).write_text(f"my {name}")
    return names


def fixed_names(path):
    """The names that code gives to files in the folder where a learner works, the scripts that it writes apart."""
    for source in code(path):
        if source.startswith(scripts.WRITES):
            head, _, source = source.partition("\n")
            if not head.endswith(".py"):
                continue
        nodes = list(ast.walk(ast.parse(TransformerManager().transform_cell(source))))
        within = {id(node.right) for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)}
        within |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        within |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                given = node.args[:1] if name in OPENS else []
                if name == "add_argument" and ast.unparse(node.args[0]) in ("'--out'", "'--trace'"):
                    given = [word.value for word in node.keywords if word.arg == "default"]
                yield from (one.value for one in given if isinstance(one, ast.Constant))
            if isinstance(node, ast.JoinedStr) and id(node) not in within:
                text = "".join(
                    part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value).split(' ')[0]}}}"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
                text = node.value
            else:
                continue
            yield from (word for word in re.split(r"[\s\"']+", text) if DATA.fullmatch(word))
            yield from GIVEN.findall(text)


def files_left(folder):
    """What a notebook has written, the files of its own cells apart."""
    return [path for path in (folder / "runs").rglob("*") if path.is_file()]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code(path):
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def card(path):
    """The row of a chapter's first table: what it takes."""
    return "".join(read(path)["cells"][0]["source"]).splitlines()[6]


def links(path):
    """Where the links and pictures of a notebook's text lead, in their order."""
    texts = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    return [target for text in texts for target in re.findall(r"\]\(([^)\s]+)\)", text)]


def test_there_are_notebooks_solutions_and_exercises():
    assert {path.parent.name for path in ALL} == set(FOLDERS)
    others = {path.name for path in ALL} - {path.name for path in CHAPTERS} - {"capstone.ipynb"}
    assert len({path.name for path in CHAPTERS}) >= len(others)


@pytest.mark.timeout(1500)
@to_be_run
def test_a_notebook_runs_within_3_gb(path, tmp_path, threads_env, record_property):
    result, claims = run(path, tmp_path, threads_env)
    if f"{path.parent.name}/{path.stem[:2]}" in SECOND_RUN:
        result, claims = run(path, tmp_path, threads_env)
    assert 30e6 < result.peak_bytes <= PEAK_BYTES
    assert not files_left(tmp_path) or f"{path.parent.name}/{path.stem[:2]}" in LEAVE_FILES
    record_property(FOUND, sum(claim["measured"] and claim["status"] != "not shown here" for claim in claims))
    if wrong := otherwise(claims):
        record_property(BESIDE if OTHERWISE_BESIDE else OTHERWISE, wrong)
        if OTHERWISE_BESIDE:
            OTHERWISE_BESIDE.mkdir(parents=True, exist_ok=True)
            (OTHERWISE_BESIDE / path.stem).touch()


@pytest.mark.timeout(3000)
@pytest.mark.xdist_group("last")
@pytest.mark.parametrize("when", ["soon", pytest.param("later", marks=pytest.mark.ci)])
def test_what_was_otherwise_beside_other_tests_is_tried_again_alone(when, tmp_path, alone, record_property):
    """Other tests may have spoiled a chapter's measurement, and the peaks that it rests on: it runs once more."""
    paths_beside = [path for path in CHAPTERS if OTHERWISE_BESIDE and (OTHERWISE_BESIDE / path.stem).exists()]
    wrong = []
    with alone():
        if paths_beside:
            for peaks in (paths.cache_dir() / "machine").glob("peaks-*.json"):
                peaks.unlink()
        for path in paths_beside:
            (OTHERWISE_BESIDE / path.stem).unlink()
            (folder := tmp_path / path.stem).mkdir()
            _, claims = run(path, folder, {})
            wrong += [f"{path.stem}: {what}" for what in otherwise(claims)]
    record_property(OTHERWISE, wrong)
    record_property(ALONE, True)


@every_notebook
def test_a_notebook_is_valid_with_ids_and_without_outputs(path):
    quick_imports()
    import nbformat

    nbformat.validate(read(path))
    cells = read(path)["cells"]
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert "widgets" not in read(path)["metadata"]


@every_notebook
def test_a_notebook_names_no_file_that_a_learner_may_have_beside_it(path):
    """What it writes goes into a folder made for this sitting; ``%%writefile`` keeps what lies there."""
    assert list(fixed_names(path)) == []


@every_notebook
def test_a_notebook_asks_for_the_kernel_everyone_has(path):
    assert read(path)["metadata"]["kernelspec"]["name"] == "python3"


@every_notebook
def test_the_first_code_cell_holds_the_parameters(path):
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    assert ["parameters" in cell["metadata"].get("tags", ()) for cell in cells] == [True] + [False] * (len(cells) - 1)
    assert "".join(cells[0]["source"]).startswith('preset = "auto"')


@every_notebook
def test_a_notebook_names_no_absolute_path(path):
    for cell in read(path)["cells"]:
        assert not OUTSIDE.search("".join(cell["source"])), "".join(cell["source"])


@every_notebook
def test_every_link_to_a_file_leads_to_one(path):
    for target in links(path):
        if not re.match(r"[a-z]+:|#", target):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize(
    ("path", "following"), list(itertools.pairwise(CHAPTERS)), ids=lambda path: path.stem.partition("_")[0]
)
def test_a_chapter_ends_with_the_way_to_the_next(path, following):
    last = "".join(read(path)["cells"][-1]["source"]).splitlines()[-1]
    assert last.startswith("- Next: [") or last.startswith("Next: [")
    assert links(path)[-1] == following.name


@every_notebook
def test_a_notebook_keeps_to_its_budget_of_words_and_cells(path):
    cells = read(path)["cells"]
    words = sum(len("".join(cell["source"]).split()) for cell in cells if cell["cell_type"] == "markdown")
    assert words <= WORDS
    assert len(cells) <= CELLS
    for source in code(path):
        if source.startswith(scripts.WRITES):
            lines = [line for line in source.splitlines()[1:] if line.strip() and not line.endswith(" SOLUTION")]
            assert len(lines) <= SCRIPT_LINES
        else:
            assert source.count("\n") + 1 <= CODE_LINES
    kinds = "".join(cell["cell_type"][0] for cell in cells)
    assert "c" * (CODE_IN_A_ROW + 1) not in kinds


@every_notebook
def test_a_notebook_imports_no_stars(path):
    for source in code(path):
        for node in ast.walk(ast.parse(TransformerManager().transform_cell(source))):
            if isinstance(node, ast.ImportFrom):
                assert [alias.name for alias in node.names] != ["*"]


@every_chapter
def test_a_chapter_says_what_it_takes(path):
    about = read(path)["metadata"]["dltutorial"]
    assert about["chapter"] == path.stem[:2]
    assert 0 < about["minutes"] <= 45
    minutes = [int(n) for n in re.findall(r"(\d+) reading, (\d+) doing, (\d+) exercise", card(path))[0]]
    assert minutes[0] + minutes[1] == about["minutes"]
    assert minutes[2] == about["exercise_min"] <= 60
    assert 0 < about["smoke_s"] <= 60
    assert isinstance(about["needs"], list)
    assert isinstance(about["better_with"], list)
