"""The project's own files agree with each other: packages, versions, links, commands and make targets."""

import ast
import contextlib
import json
import re
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
from dltutorial import train_options
from dltutorial.cli import make_parser

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = ["README.md", "INSTRUCTORS.md", "CONTRIBUTING.md", "TROUBLESHOOTING.md"]
NOT_IN_CONDA = {"tune", "dali", "mlflow"}  # extras that most people do without
# Paths below these folders belong to one machine. System folders such as /proc and /dev are on every machine.
MACHINE_PATH = re.compile(
    r"(?<![\w.~}\)-])/(?:home|root|work|tmp|mnt|Users|scratch|pscratch|global|opt|srv)/\w|\b[A-Z]:\\\w"
)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def requirements():
    """Return {name: allowed versions} of the packages that pyproject.toml and environment.yml both have."""
    lines = list(PROJECT["dependencies"])
    for extra, more in PROJECT["optional-dependencies"].items():
        if extra not in NOT_IN_CONDA:
            lines += more
    return {canonicalize_name(Requirement(line).name): Requirement(line).specifier for line in lines}


def conda_packages():
    """Return {name on PyPI: allowed versions} from environment.yml."""
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    lines = [entry for entry in entries if isinstance(entry, str)]
    lines += [line for entry in entries if isinstance(entry, dict) for line in entry["pip"]]
    assert lines[-1] == "-e ."
    packages = {}
    for line in lines[:-1]:
        if line.startswith("-e"):
            continue
        name, versions = re.fullmatch(r"([\w-]+) *(.*)", line).groups()
        packages["torch" if name == "pytorch" else canonicalize_name(name)] = SpecifierSet(versions)
    return packages


def pinned_versions():
    """Return {name: the version that the course was tested with} from constraints.txt."""
    lines = [line.split("==") for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in lines}


def tracked_files():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


# Packages and versions


def test_conda_and_pip_install_the_same_packages():
    conda = conda_packages()
    assert conda.pop("python") == SpecifierSet(PROJECT["requires-python"])
    conda.pop("pip")
    assert conda == requirements()


def test_the_library_imports_only_what_pyproject_asks_for():
    known = requirements().keys() | {"dltutorial", "ray", "nvidia"}
    for file in (ROOT / "dltutorial").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names.append(node.module)
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                package = "scikit-learn" if name == "sklearn" else name
                assert canonicalize_name(package) in known, f"{file.name} imports {name}"


def test_pinned_versions_are_allowed():
    pinned = pinned_versions()
    for name, allowed in requirements().items():
        assert pinned[name] in allowed, name


def test_the_oldest_python_can_install_what_is_pinned():
    oldest = next(iter(SpecifierSet(PROJECT["requires-python"]))).version + ".0"
    pinned = pinned_versions()
    for package in metadata.distributions():
        if canonicalize_name(package.name) in pinned:
            assert oldest in SpecifierSet(package.metadata["Requires-Python"] or ""), package.name


def test_version_and_date_are_the_same_everywhere():
    citation = yaml.safe_load(read("CITATION.cff"))
    version, date = re.search(r"^## (\S+) \((\S+)\)", read("CHANGELOG.md"), re.MULTILINE).groups()
    assert citation["version"] == version == dltutorial.__version__
    assert str(citation["date-released"]) == date
    assert citation["license"] in PROJECT["license"]


# What is in the repository


def test_no_file_names_a_path_of_one_machine():
    found = []
    for file in tracked_files():
        with contextlib.suppress(UnicodeDecodeError):
            found += [f"{file.name}: {match[0]}" for match in MACHINE_PATH.finditer(file.read_text())]
    assert not found


def test_no_file_is_larger_than_a_mebibyte():
    assert not [file for file in tracked_files() if file.stat().st_size > 2**20]


# Documents


def commands(document):
    """Return the lines of all code blocks and the code spans, without comments."""
    text = read(document)
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return lines + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def is_ignored(path):
    """Tell whether a path lies in a folder that git ignores, so that it need not exist."""
    return path.split("/")[0] + "/" in {line.lstrip("/") for line in read(".gitignore").splitlines()}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    headings = re.findall(r"^#+ (.*)", read(document), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)\s]+)\)", read(document)):
        path, _, anchor = target.partition("#")
        if not re.match(r"https?:", target):
            assert path == "" or (ROOT / path).exists(), target
            assert path or anchor in anchors, target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist(document):
    """Words in brackets and capital letters such as NAME stand for something that the reader chooses."""
    targets = re.search(r"^\.PHONY: (.*)", read("Makefile"), re.MULTILINE)[1].split()
    for command in commands(document):
        for target in re.findall(r"\bmake ([a-z][a-z-]*)", command):
            assert target in targets, command
        if match := re.search(r"(?:^|/|\()dltutorial ((?!/)[a-z].*)", command):
            words = [word for word in match[1].rstrip(" &\\)'\"").split() if not re.search(r"[<>…\[\]]", word)]
            if words[0] == "train":
                train_options.make_parser().parse_args(words[1:])
            else:
                make_parser().parse_args(words)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_paths_exist(document):
    paths = [text for text in commands(document) if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", text) and "/" in text]
    for path in paths:
        if "NAME" not in path:
            assert is_ignored(path) or (ROOT / path).exists() or (ROOT / "dltutorial" / path).exists(), path


def test_the_readmes_map_is_the_repository():
    """The map is a list of names. The names below ``dltutorial/`` are indented."""
    block = re.search(r"## What is where\n```\n(.*?)```", read("README.md"), re.DOTALL)[1]
    for line in block.splitlines():
        folder = "dltutorial/" if line.startswith(" ") else ""
        assert (ROOT / folder / line.split()[0]).exists(), line


def test_the_readmes_variables_are_read_somewhere():
    code = "".join(file.read_text() for file in [*(ROOT / "dltutorial").rglob("*.py"), ROOT / "Makefile"])
    for name in re.findall(r"\bDLTUTORIAL_[A-Z]+\b", read("README.md")):
        assert name in code, name


def test_the_readme_lists_every_chapter_with_its_minutes():
    rows = [line for line in read("README.md").splitlines() if re.match(r"\| \d\d \|", line)]
    for file in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        about = json.loads(file.read_text())["metadata"]["dltutorial"]
        (row,) = [row for row in rows if f"(notebooks/{file.name})" in row]
        assert row.startswith(f"| {about['chapter']} |")
        assert f"| {about['minutes']} |" in row
