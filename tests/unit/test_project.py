"""What the project's own files say about each other is true: packages, versions, links, commands, targets."""

import ast
import contextlib
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import dltutorial
from dltutorial.cli import make_parser

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TARGETS = ["help", "run", "lab", "book", "update", "test", "lint", "clean"]
# Built from parts, so that this file does not hold what it forbids. System places (/proc, /dev, /usr) are none.
MACHINE_PATH = re.compile(
    r"(?<![\w.~}\)-])/(?:home|root|work|tmp|mnt|Users|scratch|pscratch|global|opt|srv)/\w|\b[A-Z]:\\\w"
)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def project():
    return tomllib.loads(read("pyproject.toml"))["project"]


def requirements():
    """{name: allowed versions} of everything pyproject.toml asks for, Ray excepted, which most do without."""
    extras = [
        texts
        for name, texts in project()["optional-dependencies"].items()
        if name not in ("tune", "mpi", "dali", "mlflow")
    ]
    texts = [*project()["dependencies"], *(text for extra in extras for text in extra)]
    return {canonicalize_name(Requirement(text).name): Requirement(text).specifier for text in texts}


def conda_packages():
    """The same from environment.yml, under PyPI's names, and the names in its pip block."""
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    found = {}
    for text in [e for e in entries if isinstance(e, str)] + [p for p in pip if not p.startswith("-e")]:
        name, versions = re.fullmatch(r"([\w-]+) *(.*)", text).groups()
        found["torch" if name == "pytorch" else canonicalize_name(name)] = SpecifierSet(versions)
    return found, pip


def pins():
    """{name: the version the course was tested with}."""
    lines = [line.split("==") for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in lines}


def tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def make(folder, *words):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words], cwd=folder, capture_output=True, text=True, env=env, timeout=250)


def ignored(path):
    """Whether a path lies in a folder that runs make, so that it need not exist."""
    return path.split("/")[0] + "/" in {line.lstrip("/") for line in read(".gitignore").splitlines()}


# Packages and versions


def test_conda_and_pip_get_the_same_packages():
    conda, pip = conda_packages()
    assert conda.pop("python") == SpecifierSet(project()["requires-python"])
    conda.pop("pip")
    assert conda == requirements()
    assert pip[-1] == "-e ."


def test_what_the_library_imports_is_asked_for():
    known = requirements().keys() | {"dltutorial", "ray", "mpi4py"}  # MPI is somebody else's, where there is one
    distributions = {"sklearn": "scikit-learn"}
    for file in (ROOT / "dltutorial").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                assert canonicalize_name(distributions.get(name, name)) in known, f"{file.name} imports {name}"


def test_pinned_versions_are_allowed_ones():
    pinned = pins()
    assert pinned["torch"] == "2.13.0"
    for name, allowed in requirements().items():
        assert pinned[name] in allowed, name


def test_the_oldest_python_asked_for_may_install_what_is_pinned():
    oldest = next(iter(SpecifierSet(project()["requires-python"]))).version + ".0"
    found = {canonicalize_name(one.name): one.metadata["Requires-Python"] or "" for one in metadata.distributions()}
    asked = {name: found[name] for name in pins() if name in found}
    assert len(asked) > 100
    wrong = {name: text for name, text in asked.items() if oldest not in SpecifierSet(text)}
    assert not wrong, f"Python {oldest}, as Debian's 3.11.2, cannot install {wrong}"


def test_one_version_and_one_date_everywhere():
    citation = yaml.safe_load(read("CITATION.cff"))
    version, date = re.search(r"^## (\S+) \((\S+)\)", read("CHANGELOG.md"), re.MULTILINE).groups()
    assert citation["version"] == version == dltutorial.__version__
    assert str(citation["date-released"]) == date
    assert project()["dynamic"] == ["version"]
    assert citation["license"] in project()["license"]


# What is in the repository


def test_no_file_names_a_place_on_someones_machine():
    found = []
    for file in tracked():
        with contextlib.suppress(UnicodeDecodeError):
            found += [f"{file.relative_to(ROOT)}: {hit[0]}" for hit in MACHINE_PATH.finditer(file.read_text())]
    assert not found


def test_no_big_files():
    assert not [file for file in tracked() if file.stat().st_size > 2**20]


# README


@functools.cache
def readme():
    return read("README.md")


def blocks():
    """The fenced blocks, without their fences."""
    return re.findall(r"^```[^\n]*\n(.*?)^```", readme(), re.MULTILINE | re.DOTALL)


def prose():
    return re.sub(r"^```.*?^```", "", readme(), flags=re.MULTILINE | re.DOTALL)


def spans():
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", prose())


def commands():
    """Lines of code blocks, and code spans: where a command may stand."""
    return [line.split(" #")[0].strip() for block in blocks() for line in block.splitlines()] + spans()


def links():
    """(text, target, line) of every link and picture."""
    pattern = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
    for line in prose().splitlines():
        for text, target, source in pattern.findall(line):
            yield text, target or source, line


def slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_readme_links_lead_somewhere():
    anchors = {slug(heading) for heading in re.findall(r"^#+ (.*)", readme(), re.MULTILINE)}
    for _, target, _ in links():
        path, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        assert path == "" or (ROOT / path).exists(), target
        assert path or anchor in anchors, target


def test_readme_says_why_to_follow_each_link():
    for text, target, line in links():
        if re.match(r"https?:", target):
            around = line.replace(f"[{text}]({target})", "")
            assert len(re.findall(r"[A-Za-z]{2,}", around)) >= 3, f"no reason beside {target}"


def test_readme_paths_exist():
    paths = [span for span in spans() if "/" in span and not re.search(r"[\s=$~*]|^https?:|^/", span)]
    for path in paths:
        path = re.split(r"[<…]", path)[0]
        assert ignored(path) or (ROOT / path).exists() or (ROOT / "dltutorial" / path).exists(), path


def test_readme_tree_is_the_repository():
    """An indented list of names with a note each; `folder/` opens a level."""
    trees = [block for block in blocks() if re.search(r"^[\w.-]+/(\s{2,}|$)", block, re.MULTILINE)]
    stack = []
    for line in "\n".join(trees).splitlines():
        indent, name = re.match(r"( *)(\S*)", line).groups()
        stack = [(i, n) for i, n in stack if i < len(indent)]
        if not name or "…" in name:
            continue
        path = "".join(n for _, n in stack) + name
        assert ignored(path) or (ROOT / path).exists(), path
        if name.endswith("/"):
            stack.append((len(indent), name))


def test_readme_names_real_make_targets():
    named = {target for command in commands() for target in re.findall(r"\bmake ([a-z]+)", command)}
    assert {"run", "lab"} <= named <= set(TARGETS)


def test_readme_commands_parse():
    found = [re.search(r"(?:^|/| )dltutorial ((?!/)[a-z].*)", command) for command in commands()]
    found = [match[1].rstrip(" &\\") for match in found if match]
    assert found, "the README shows no dltutorial command"
    for command in found:
        words = [word for word in command.split() if not re.search(r"^[\[<…]|[\]>]$", word)]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                make_parser().parse_args(words)
            except SystemExit:
                pytest.fail(f"dltutorial {command}: {said.getvalue()}")


def test_readme_variables_are_read_somewhere():
    files = [*(ROOT / "dltutorial").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]
    code = "".join(file.read_text() for file in files)
    for name in re.findall(r"\bDLTUTORIAL_[A-Z]+\b", readme()):
        assert name in code, name


def test_readme_versions_are_the_ones_asked_for_or_tested():
    known = requirements() | {"python": SpecifierSet(project()["requires-python"])}
    known["pytorch"] = known["torch"]
    tested = pins() | {"pytorch": pins()["torch"]}
    for name, version in re.findall(r"\b([A-Za-z][\w-]+)`? ?(?:≥|>=|==|from)? ?(\d+\.\d+(?:\.\d+)*)", readme()):
        if name.lower() in known:
            asked = {spec.version for spec in known[name.lower()]}
            assert version in asked or tested.get(name.lower(), "").startswith(version), f"{name} {version}"


def test_readme_lists_every_chapter_with_its_minutes():
    rows = {cells[0]: cells for cells in table_rows() if re.fullmatch(r"\d\d", cells[0])}
    for file in NOTEBOOKS:
        about = json.loads(file.read_text())["metadata"]["dltutorial"]
        row = rows[about["chapter"]]
        assert any(file.name in cell for cell in row), f"the row of {about['chapter']} does not lead to {file.name}"
        assert any(re.search(rf"\b{about['minutes']}\b", cell) for cell in row[2:]), f"{file.name}: minutes"


def table_rows():
    """Cells of every table row."""
    return [[c.strip() for c in line.strip("| ").split("|")] for line in prose().splitlines() if line.startswith("|")]


# Makefile


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The repository as a newcomer gets it: what is committed, nothing else."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("clone") / "course"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_what_to_do_in_a_fresh_clone(clone, target):
    done = make(clone, "-n", target)
    assert done.returncode == 0, done.stderr


def test_make_says_what_it_can_do(clone):
    said = make(clone).stdout
    assert all(f"make {target}" in said for target in TARGETS if target != "help")


def test_make_clean_leaves_what_it_has_not_made(clone):
    theirs = [clone / name for name in ("artifacts/cache/x", "build/book/html/index.html", "artifacts/room.lock")]
    mine = [
        clone / name for name in ("artifacts/figure.png", "build/book/notes.txt", "dist/mine.tar", "runs/r/weights.pt")
    ]
    for file in (*theirs, *mine):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    subprocess.run(["make", "clean"], cwd=clone, check=True, capture_output=True)
    assert [file for file in (*theirs, *mine) if file.exists()] == mine
    mine[0].unlink()
    subprocess.run(["make", "clean"], cwd=clone, check=True, capture_output=True)
    assert not (clone / "artifacts").exists()
    for name in ("build", "dist", "runs"):
        shutil.rmtree(clone / name)


def test_make_clean_from_another_folder_removes_nothing_there(clone, tmp_path):
    (mine := tmp_path / ".venv" / "x").parent.mkdir()
    mine.touch()
    done = subprocess.run(
        ["make", "-f", str(clone / "Makefile"), "clean"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.endswith(f"this Makefile works in its own folder only: make -C {clone}/.  Stop.\n")
    assert mine.exists()


def test_make_in_a_copied_folder_does_not_run_the_others_code(clone, tmp_path):
    """A copied .venv has the course of the folder that it was made in."""
    shutil.copytree(clone, tmp_path / "copy")
    (tmp_path / "copy" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "copy" / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "copy" / ".venv" / ".course").touch()
    for target in ("run", "lab", "update", "book", "test"):
        done = make(tmp_path / "copy", target)
        assert done.returncode == 2
        assert (
            "is of another place: this folder was copied or moved. Remove it (rm -rf .venv), and make a" in done.stderr
        )


def test_every_module_of_a_fresh_clone_imports(clone):
    code = (
        "import importlib, pkgutil, dltutorial\n"
        "names = [m.name for m in pkgutil.walk_packages(dltutorial.__path__, 'dltutorial.')]\n"
        "[importlib.import_module(n) for n in names if not n.endswith('__main__')]\n"
        "print(dltutorial.__file__)"
    )
    env = os.environ | {"PYTHONPATH": str(clone)}
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    assert done.stdout.strip().startswith(str(clone))


def test_test_folders_can_be_collected_together():
    """pytest puts every test folder on the path: a name that two of them hold means the first one's file."""
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.name != "conftest.py"]
    assert len({file.name for file in files}) == len(files)
    assert not [file for file in files if re.search(r"^(from|import) conftest\b", file.read_text(), re.MULTILINE)]
