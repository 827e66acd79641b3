"""What becomes of a learner's work when the course changes under it: real git, real nbgitpuller, real archives."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_exercises import CODE, edit, notebook

from dltutorial import advice, paths
from dltutorial.course import exercises
from dltutorial.errors import CourseError

ROOT = Path(__file__).parents[2]
EX, CHAPTER = "exercises/00_a.ipynb", "notebooks/00_a.ipynb"
pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


@pytest.fixture(autouse=True)
def _nobodys_git(tmp_path, monkeypatch):
    """No settings of the person who runs the tests; an author for commits."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@localhost")


def git(folder, *words, check=True):
    told = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    assert not check or told.returncode == 0, told.stderr
    return told


def chapter(*sources):
    """A notebook without outputs."""
    made = json.loads(notebook(*sources))
    for cell in made["cells"]:
        cell.update(outputs=[], execution_count=None)
    return json.dumps(made, indent=1)


class Course:
    """An author's clone, the repository that learners fetch from, and a learner's clone."""

    def __init__(self, folder):
        self.author, self.hub, self.learner = folder / "author", folder / "hub.git", folder / "learner"
        self.url = f"file://{self.hub}"
        (self.author / "solutions").mkdir(parents=True)
        (self.author / "notebooks").mkdir()
        (self.author / "solutions" / "00_a.ipynb").write_text(notebook(CODE, "print(1)", "print('end')"))
        self.write(CHAPTER, chapter("a = 1", "print(1)"))
        self.write("pyproject.toml", "[project]\n")
        self.write("site.sh", "one\ntwo\nthree\n")
        for name in (".gitattributes", ".gitignore"):
            shutil.copy(ROOT / name, self.author / name)
        exercises.build(self.author)
        git(folder, "init", "-q", "-b", "main", str(self.author))
        git(self.author, "add", "-A")
        git(self.author, "commit", "-qm", "first")
        git(folder, "clone", "-q", "--bare", str(self.author), str(self.hub))
        git(self.author, "remote", "add", "origin", self.url)
        git(folder, "clone", "-q", self.url, str(self.learner))

    def write(self, name, text):
        (self.author / name).parent.mkdir(exist_ok=True)
        (self.author / name).write_text(text)

    def publish(self, **changes):
        """A newer version: the exercise has other text, and whatever ``changes`` say."""
        edit(self.author / "solutions" / "00_a.ipynb", "print('end')", "print('newer')")
        exercises.build(self.author)
        for name, text in changes.items():
            self.write(name, text) if text is not None else (self.author / name).unlink()
        git(self.author, "add", "-A")
        git(self.author, "commit", "-qm", "newer")
        git(self.author, "push", "-q", "origin", "main")

    def text(self, name):
        return (self.learner / name).read_text()

    def begin_update(self, **options):
        """The first line of `make update`; the course's own Makefile runs it so."""
        words = [sys.executable, str(ROOT / "hub" / "update.py")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, cwd=self.learner, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes, **options)

    def update(self):
        """Both lines of it; returns what it says."""
        run = self.begin_update()
        said, errors = run.communicate()
        assert (run.returncode, errors) == (0, ""), errors
        assert exercises.build(self.learner) == 0
        return said

    def refused(self):
        """The one line of an update that is refused; all that the learner has is as it was, git's own state too."""

        def state():
            told = [git(self.learner, *words, check=False).stdout for words in (("status", "--porcelain"), ("log",))]
            return everything(self), *told

        before = state()
        run = self.begin_update()
        said, line = run.communicate()
        assert (run.returncode, said) == (1, "")
        assert state() == before
        assert line.startswith("dltutorial: ")
        assert line.count("\n") == 1, line
        assert "secret" not in line
        return line


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path)


def solve(file, answer="return 42"):
    edit(file, "raise NotImplementedError", answer)


def execute(file):
    edit(file, '"outputs": []', '"outputs": [{"output_type": "stream", "name": "stdout", "text": "seen"}]')
    edit(file, '"execution_count": null', '"execution_count": 7')


def everything(course):
    """All that is in the learner's folder, git's own files and Python's bytecode left out, as one text."""
    files = [
        path for path in course.learner.rglob("*") if path.is_file() and not re.search("\\.git/|\\.pyc", str(path))
    ]
    return "".join(file.read_text() for file in sorted(files))


@pytest.fixture(params=["git clone", "nbgitpuller"])
def update(request, course):
    """`make update`, in a learner's clone or in a folder of nbgitpuller's."""
    if request.param == "nbgitpuller":
        shutil.rmtree(course.learner)
        words = [str(Path(sys.executable).parent / "gitpuller"), course.url, "main", str(course.learner)]
        subprocess.run(words, check=True, capture_output=True)
    return course.update


def test_the_newer_version_comes_to_who_has_changed_nothing(course, update):
    course.publish()
    update()
    assert "newer" in course.text(EX)
    assert git(course.learner, "status", "--porcelain").stdout == ""
    update()


def test_an_edited_exercise_stays_whole_and_the_newer_one_is_put_beside(course, update, capsys):
    solve(course.learner / EX)
    execute(course.learner / EX)
    before = course.text(EX)
    for answer in ("newer", "once more"):
        course.publish(**{"site.sh": answer})
        update()
        assert course.text(EX) == before
        assert "newer" in course.text("exercises/00_a.new.ipynb")
        assert course.text("site.sh") == answer
    assert capsys.readouterr().out.count("00_a.new.ipynb") == 1


def test_an_exercise_that_was_only_run_gets_its_newer_version(course, update):
    execute(course.learner / EX)
    course.publish()
    update()
    assert "newer" in course.text(EX)
    assert not (course.learner / "exercises/00_a.new.ipynb").exists()


def test_a_chapter_stays_a_notebook_with_the_learners_lines_and_takes_the_courses_others(course, update):
    edit(course.learner / CHAPTER, "a = 1", "a = 'mine'")
    execute(course.learner / CHAPTER)
    course.publish(**{CHAPTER: chapter("a = 1", "b = 1", "c = 1", "print(1)", "print('new')")})
    update()
    cells = ["".join(cell["source"]) for cell in json.loads(course.text(CHAPTER))["cells"]]
    assert "a = 'mine'" in cells
    assert "seen" in course.text(CHAPTER)


def test_a_chapter_that_was_only_run_gets_its_newer_version_and_its_outputs_are_kept(course, update):
    execute(course.learner / CHAPTER)
    before = course.text(CHAPTER)
    course.publish(**{CHAPTER: chapter("a = 1", "print('other')")})
    update()
    assert course.text(CHAPTER) == (course.author / CHAPTER).read_text()
    assert [file.read_text() for file in course.learner.glob("notebooks/kept/*")] == [before]
    assert git(course.learner, "status", "--porcelain").stdout == ""


def test_an_edited_script_keeps_the_learners_lines(course, update):
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    update()
    assert course.text("site.sh").startswith("mine\ntwo\n")


def test_a_file_of_the_learner_where_the_course_brings_one_and_one_that_it_drops_stay(course, update):
    (course.learner / "notes.md").write_text("mine\n")
    (course.learner / "site.sh").write_text("mine\n")
    course.publish(**{"notes.md": "the course's\n", "site.sh": None})
    update()
    assert course.text("notes.md") == "the course's\n"
    assert [file.read_text() for file in course.learner.glob("notes__*.md")] == ["mine\n"]
    assert course.text("site.sh") == "mine\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [("commit.gpgsign", "true"), ("merge.ff", "only"), ("merge.verifySignatures", "true"), ("core.hooksPath", "hooks")],
)
def test_a_learners_settings_of_git_are_in_no_updates_way(course, key, value):
    (course.learner / "hooks").mkdir()
    (course.learner / "hooks" / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (course.learner / "hooks" / "pre-commit").chmod(0o755)
    git(course.learner, "config", key, value)
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    course.update()
    assert course.text("site.sh").startswith("mine\ntwo\n")
    assert "newer" in course.text(EX)


def test_no_editor_is_waited_for(course, monkeypatch):
    monkeypatch.setenv("GIT_MERGE_AUTOEDIT", "yes")
    monkeypatch.setenv("GIT_EDITOR", "false")
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    course.update()
    assert course.text("site.sh").startswith("mine\ntwo\n")
    assert "newer" in course.text(EX)


@pytest.mark.parametrize("staged_only", [True, False])
def test_what_the_learner_has_staged_or_committed_stays(course, update, staged_only):
    solve(course.learner / EX)
    git(course.learner, "add", "-A")
    if not staged_only:
        git(course.learner, "commit", "-qm", "my answer")
    course.publish()
    update()
    assert "return 42" in course.text(EX)
    assert "newer" not in course.text(EX)
    assert "newer" in course.text("exercises/00_a.new.ipynb")


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_staged_version_that_is_nowhere_else_is_told_and_stays(course, is_gone):
    (course.learner / "site.sh").write_text("staged\n")
    git(course.learner, "add", "site.sh")
    (course.learner / "site.sh").unlink() if is_gone else (course.learner / "site.sh").write_text("and then this\n")
    course.publish()
    line = course.refused()
    assert "you have staged site.sh, and then changed it; so that both stay: git commit -m staged, then again" in line
    assert git(course.learner, "show", ":site.sh").stdout == "staged\n"
    git(course.learner, *re.search("git (.*), then", line)[1].split())
    course.update()
    assert "staged" in git(course.learner, "log", "-p").stdout
    assert course.text("site.sh") == ("one\ntwo\nthree\n" if is_gone else "and then this\n")


@pytest.mark.parametrize("theirs", ["site.sh/inside.sh", "notebooks"])
def test_a_folder_that_becomes_a_file_and_a_file_that_becomes_a_folder_come(course, theirs):
    (course.learner / "notebooks" / "__pycache__").mkdir()
    (course.learner / "notebooks" / "__pycache__" / "a.pyc").write_text("")
    (course.author / "site.sh").unlink() if "/" in theirs else shutil.rmtree(course.author / "notebooks")
    course.publish(**{theirs: "the course's\n"})
    course.update()
    assert course.text(theirs) == "the course's\n"
    assert git(course.learner, "status", "--porcelain").stdout == ""


@pytest.mark.ci
@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize(
    ("theirs", "mine", "is_new"),
    [
        ("site.sh/inside.sh", "site.sh", False),
        ("notebooks", CHAPTER, False),
        ("notebooks", "notebooks/mine.txt", True),
    ],
)
def test_a_learners_work_is_in_the_way_of_a_folder_that_becomes_a_file_and_there_is_a_way_on(
    course, theirs, mine, is_new, is_committed
):
    (course.learner / mine).write_text(chapter("mine"))
    if is_committed:
        git(course.learner, "add", "-A")
        git(course.learner, "commit", "-qm", "mine")
    (course.author / "site.sh").unlink() if "/" in theirs else shutil.rmtree(course.author / "notebooks")
    course.publish(**{theirs: "the course's\n"})
    there = theirs.split("/")[0]
    assert f"{there} is in the way of the course's {theirs}; rename it, then again" in course.refused()
    (course.learner / there).rename(course.learner / "mine")
    course.update()
    assert course.text(theirs) == "the course's\n"
    assert chapter("mine") in everything(course)


def test_an_edited_exercise_that_the_course_drops_stays(course, update):
    solve(course.learner / EX)
    course.publish(**{EX: None, "solutions/00_a.ipynb": None, "solutions/01_b.ipynb": notebook(CODE)})
    update()
    assert "return 42" in course.text(EX)


def test_git_pull_refuses_loses_nothing_and_an_update_then_succeeds(course, update):
    solve(course.learner / EX)
    before = course.text(EX)
    course.publish()
    told = git(course.learner, "pull", check=False)
    assert told.returncode != 0
    assert advice.of_words("git", told.stderr).name == "git-pull"
    assert course.text(EX) == before
    update()
    assert course.text(EX) == before


def test_after_gits_own_advice_the_notebook_is_whole_and_the_answer_is_in_the_stash(course):
    solve(course.learner / EX)
    course.publish()
    git(course.learner, "stash")
    git(course.learner, "pull", "-q")
    assert git(course.learner, "stash", "pop", check=False).returncode != 0
    json.loads(course.text(EX))
    git(course.learner, "checkout", "--theirs", "--", EX)
    assert "return 42" in course.text(EX)


def test_a_commit_and_a_pull_that_meet_a_conflict_leave_a_whole_notebook(course):
    solve(course.learner / EX)
    git(course.learner, "commit", "-qam", "my answer")
    course.publish()
    assert git(course.learner, "pull", "-q", "--no-rebase", check=False).returncode != 0
    assert "return 42" in "".join("".join(cell["source"]) for cell in json.loads(course.text(EX))["cells"])


def test_a_newer_release_unpacked_over_the_folder_leaves_the_exercises_alone(course):
    solve(course.learner / EX)
    execute(course.learner / EX)
    before = course.text(EX)
    shutil.rmtree(course.learner / ".git")
    course.publish(**{"site.sh": "newer\n"})
    archive = course.hub / "release.tar"
    git(course.author, "archive", "-o", str(archive), "HEAD")
    shutil.unpack_archive(archive, course.learner, **({"filter": "data"} if hasattr(os, "process_cpu_count") else {}))
    assert course.text("site.sh") == "newer\n"
    assert course.text(EX) == before
    assert exercises.build(course.learner) == 0
    assert course.text(EX) == before
    assert "newer" in course.text("exercises/00_a.new.ipynb")


def test_a_release_has_its_exercises_after_one_build(course, tmp_path):
    git(course.author, "archive", "-o", str(tmp_path / "release.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "release.tar", tmp_path / "release")
    assert not list((tmp_path / "release").glob("exercises/*.ipynb"))
    exercises.build(tmp_path / "release")
    assert (tmp_path / "release" / EX).read_bytes() == (course.author / EX).read_bytes()


def test_an_edited_exercise_carried_over_to_a_newer_checkout_stays_and_meets_its_newer_version(course, tmp_path):
    solve(course.learner / EX)
    course.publish()
    git(tmp_path, "clone", "-q", course.url, str(tmp_path / "second"))
    shutil.copy(course.learner / EX, tmp_path / "second" / EX)
    exercises.build(tmp_path / "second")
    assert "return 42" in (tmp_path / "second" / EX).read_text()
    assert "newer" in (tmp_path / "second/exercises/00_a.new.ipynb").read_text()


def test_the_makefile_updates_so():
    told = subprocess.run(
        ["make", "-n", "--no-print-directory", "-o", ".venv/.course", "update"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    assert [line.split("/")[-1] for line in told.splitlines()] == [
        "update.py",
        "dltutorial exercises build",
    ]


def test_an_update_waits_for_another_and_says_so_in_one_line(course):
    solve(course.learner / EX)
    course.publish()
    before = everything(course)
    with paths.locked(course.learner):
        waits = course.begin_update()
        assert waits.stderr.readline() == "another build or update is at work in this folder; waiting for it\n"
        assert everything(course) == before
    assert waits.wait() == 0
    assert "up to date" in waits.communicate()[0]


def test_an_update_that_is_interrupted_says_so_in_one_line(course):
    with paths.locked(course.learner):
        waits = course.begin_update()
        waits.stderr.readline()
        waits.send_signal(signal.SIGINT)
        assert waits.communicate() == ("", "dltutorial: interrupted; nothing that you have made is lost\n")
    assert waits.returncode == 1


def test_several_updates_at_once_lose_nothing(course):
    solve(course.learner / EX)
    execute(course.learner / EX)
    edit(course.learner / CHAPTER, "a = 1", "a = 'mine'")
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    (course.learner / "notes.md").write_text("my notes\n")
    before = course.text(EX)
    course.publish(**{"site.sh": "one\ntwo\nnewer\n", "notes.md": "the course's\n", "other.sh": "new\n"})
    several = [course.begin_update() for _ in range(4)]
    for run in several:
        assert (run.communicate()[1].replace(f"{exercises.AT_WORK}; waiting for it\n", ""), run.returncode) == ("", 0)
    exercises.build(course.learner)
    assert course.text(EX) == before
    assert "a = 'mine'" in course.text(CHAPTER)
    assert course.text("site.sh").startswith("mine\ntwo\n")
    assert (course.text("notes.md"), course.text("other.sh")) == ("the course's\n", "new\n")
    assert [file.read_text() for file in course.learner.glob("notes__*.md")] == ["my notes\n"]


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"])
def test_an_update_is_of_its_own_folder_whatever_repository_the_environment_names(course, tmp_path, name, monkeypatch):
    other = tmp_path / "dotfiles"
    git(tmp_path, "clone", "-q", course.url, str(other))
    before = git(other, "log", "--oneline", "--all").stdout, git(other, "status", "--porcelain").stdout
    names = {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / ".git" / "index"}
    solve(course.learner / EX)
    course.publish()
    monkeypatch.setenv(name, str(names[name]))
    course.update()
    monkeypatch.delenv(name)
    assert "return 42" in course.text(EX)
    assert next(course.learner.glob("exercises/*.new.ipynb"))
    assert (git(other, "log", "--oneline", "--all").stdout, git(other, "status", "--porcelain").stdout) == before


def test_an_update_without_a_newer_version_leaves_what_was_run_where_it_is(course):
    execute(course.learner / CHAPTER)
    execute(course.learner / EX)
    before = everything(course)
    assert "0 of its files are newer" in course.update()
    assert everything(course) == before
    course.publish(**{CHAPTER: chapter("a = 1", "print('other')")})  # which an automatic commit has not spoiled
    course.update()
    assert course.text(CHAPTER) == (course.author / CHAPTER).read_text()
    assert "seen" in next(course.learner.glob("notebooks/kept/*")).read_text()


def lock(course):
    (course.learner / ".git" / "index.lock").touch()
    os.utime(course.learner / ".git" / "index.lock", (0, 0))  # nbgitpuller would take an old one away


def folder_for_file(course):
    (course.learner / "site.sh").unlink()
    (course.learner / "site.sh").mkdir()
    (course.learner / "site.sh" / "mine.txt").write_text("mine")


def file_for_folder(course):
    shutil.move(course.learner / "notebooks", course.learner / "mine")
    (course.learner / "notebooks").write_text("mine")


def link_for_folder(course):
    shutil.move(course.learner / "exercises", course.learner / "mine")
    (course.learner / "exercises").symlink_to("mine")


def merge(course):
    git(course.learner, "switch", "-qc", "other")
    (course.learner / "site.sh").write_text("other\n")
    git(course.learner, "commit", "-qam", "other")
    git(course.learner, "switch", "-q", "main")
    (course.learner / "site.sh").write_text("mine\n")
    git(course.learner, "commit", "-qam", "mine")
    assert git(course.learner, "merge", "other", check=False).returncode != 0


def rebase(course):
    merge(course)
    git(course.learner, "merge", "--abort")
    assert git(course.learner, "rebase", "other", check=False).returncode != 0


def cherry_pick(course):
    merge(course)
    git(course.learner, "merge", "--abort")
    assert git(course.learner, "cherry-pick", "other", check=False).returncode != 0
    git(course.learner, "add", "-A")


def stash(course):
    (course.learner / "site.sh").write_text("stashed\n")
    git(course.learner, "stash")
    (course.learner / "site.sh").write_text("mine\n")
    git(course.learner, "commit", "-qam", "mine")
    assert git(course.learner, "stash", "pop", check=False).returncode != 0


def link_for_new_folder(course):
    (course.learner.parent / "outside").mkdir()
    (course.learner / "new").symlink_to(course.learner.parent / "outside")
    course.publish(**{"new/file.sh": "the course's\n"})


def ignored_file_for_new_folder(course):
    (course.learner / ".git" / "info" / "exclude").write_text("/new\n")
    (course.learner / "new").write_text("mine\n")
    course.publish(**{"new/file.sh": "the course's\n"})


def lock_of_a_branch(course):
    (course.learner / ".git" / "refs" / "remotes" / "origin" / "main.lock").touch()


OBSTACLES = [
    (lock_of_a_branch, ".git/refs/remotes/origin/main.lock\n"),
    (link_for_new_folder, "new is in the way of the course's new/file.sh; rename it, then again"),
    (ignored_file_for_new_folder, "new is in the way of the course's new/file.sh; rename it, then again"),
    (lambda course: git(course.learner, "branch", "origin/main"), "git would take your refs/heads/origin/main for the"),
    (lock, "another git is at work here, or was killed; wait for it, or if none runs: rm "),
    (folder_for_file, "site.sh is in the way of the course's site.sh; rename it, then again"),
    (file_for_folder, "notebooks is in the way of the course's notebooks/00_a.ipynb; rename it, then again"),
    (link_for_folder, "exercises is in the way of the course's exercises/00_a.ipynb; rename it, then again"),
    (merge, "You have unmerged paths.: finish that or undo it, as git status says; then again"),
    (rebase, "You are currently rebasing branch 'main' on "),
    (cherry_pick, "You are currently cherry-picking commit "),
    (stash, "Unmerged paths: finish that or undo it, as git status says; then again"),
    (lambda course: git(course.learner, "switch", "-q", "--detach"), "HEAD detached at "),
    (lambda course: git(course.learner, "remote", "remove", "origin"), "; say where the course is: git remote add"),
    (lambda course: git(course.learner, "switch", "-qc", "mine"), "and the name of your branch; then again"),
    (lambda course: shutil.rmtree(course.hub), "git fetch failed (fatal: '"),
    (lambda course: git(course.learner, "remote", "set-url", "origin", "https://127.0.0.1:9/c.git"), "check the net"),
    (lambda course: git(course.learner, "remote", "set-url", "origin", "https://me:secret@127.0.0.1:9/"), "//127"),
    (lambda course: shutil.rmtree(course.learner / ".git"), " is no git clone; unpack the newer release over it"),
]  # fmt: skip


@pytest.mark.parametrize(("obstacle", "words"), OBSTACLES)
def test_what_is_in_the_way_of_an_update_is_one_line_and_nothing_is_lost(course, obstacle, words):
    solve(course.learner / EX)
    git(course.learner, "commit", "-qam", "my answer")
    (course.learner / "notes.md").write_text("mine\n")
    course.publish(**{"notes.md": "the course's\n"})
    obstacle(course)
    assert words in course.refused()


def test_an_update_from_a_server_that_never_answers_ends_with_one_line(course, monkeypatch):
    monkeypatch.setenv("GIT_HTTP_LOW_SPEED_TIME", "1")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"http://127.0.0.1:{mute.getsockname()[1]}/c.git"
        git(course.learner, "remote", "set-url", "origin", address)
        assert "check the network" in course.refused()


@pytest.mark.ci
@pytest.mark.parametrize("scheme", ["git", "https"])
def test_an_update_from_a_server_that_takes_a_call_and_is_silent_ends_with_one_line(course, updating, scheme):
    updating._SILENCE_S = 1
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(60)
        git(course.learner, "remote", "set-url", "origin", f"{scheme}://127.0.0.1:{mute.getsockname()[1]}/c.git")
        with pytest.raises(CourseError, match=r"said nothing for 1 seconds; check the network"):
            updating.update(course.learner)
        caller = mute.accept()[0]
        caller.settimeout(60)
        while caller.recv(2**16):  # until the last process that called has ended
            pass


@pytest.mark.ci
def test_a_transfer_that_is_slow_but_lives_is_waited_for(course, updating, tmp_path):
    updating._SILENCE_S = 5
    slow = tmp_path / "slow"
    slow.write_text(
        '#!/bin/sh\nfor n in $(seq 20); do echo still counting >&2; sleep 0.5; done\nexec git-upload-pack "$@"\n'
    )
    slow.chmod(0o755)
    git(course.learner, "config", "remote.origin.uploadpack", str(slow))
    course.publish()
    assert "files are newer" in updating.update(course.learner)
    assert "newer" in course.text(EX)


@pytest.mark.parametrize("own", ["", "GIT_SSH", "GIT_SSH_COMMAND", "core.sshCommand"])
def test_an_update_over_ssh_has_limits_unless_the_learner_has_an_own_command(course, monkeypatch, tmp_path, own):
    fake = tmp_path / "bin" / ("own" if own else "ssh")
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/words\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    if own.startswith("GIT"):
        monkeypatch.setenv(own, str(fake))
    elif own:
        git(course.learner, "config", own, str(fake))
    git(course.learner, "remote", "set-url", "origin", "ssh://nowhere.invalid/c.git")
    assert "check the network" in course.refused()
    assert ("ConnectTimeout=60" in (tmp_path / "words").read_text()) == (not own)


def test_a_token_in_an_address_is_not_shown(course):
    git(course.learner, "remote", "set-url", "origin", "http://me:p@ss1@127.0.0.1:1/c.git?token=S3CRET")
    said = course.refused()
    assert "127.0.0.1" in said
    assert not any(word in said for word in ("S3CRET", "ss1"))


def test_a_course_whose_history_was_rewritten_is_told_as_such(course):
    git(course.author, "checkout", "-q", "--orphan", "anew")
    git(course.author, "commit", "-qm", "anew")
    git(course.author, "push", "-qf", "origin", "anew:main")
    assert "another one by now: clone it anew, and copy your files over" in course.refused()
    tip = git(course.learner, "rev-parse", "HEAD").stdout.strip()
    (course.learner / ".git" / "shallow").write_text(f"{tip}\n")  # as of git clone --depth 1: the rest may be unknown
    assert "this clone lacks older commits of the course: git fetch --unshallow, then again" in course.refused()


def test_what_the_newer_version_moves_to_a_place_where_git_ignores_the_learners_file_leaves_that_file(course):
    (course.learner / ".git" / "info" / "exclude").write_text("/moved.sh\n")
    (course.learner / "moved.sh").write_text("mine\n")
    git(course.author, "mv", "site.sh", "moved.sh")
    course.publish(**{"notes.md": "the course's\n"})
    course.update()
    assert "mine\n" in everything(course)


@pytest.mark.parametrize("name", ["größe.sh", "a b.sh", 'a"b.sh', "a\\b.sh", "a\tb.sh"])
def test_a_file_whose_name_git_quotes_stays(course, name):
    (course.learner / ".git" / "info" / "exclude").write_text("*.sh\n")
    (course.learner / name).write_text("mine\n")
    course.publish(**{name: "the course's\n"})
    run = course.begin_update()
    line = run.communicate()[1]
    assert "mine\n" in everything(course)
    assert run.returncode == 0 or "is in the way of the course's" in line


OWN = [
    ("status.short", "true"), ("status.branch", "true"), ("status.displayCommentPrefix", "true"),
    ("diff.renames", "copies"),
]  # fmt: skip


@pytest.mark.parametrize("own", OWN)
def test_a_learners_own_settings_of_git_change_nothing(course, own):
    git(course.learner, "config", *own)
    course.publish(**{"notes.md": "the course's\n"})
    course.update()
    assert course.text("notes.md") == "the course's\n"


def test_without_git_an_update_says_what_to_do(course, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    before = everything(course)
    run = course.begin_update()
    line = run.communicate()[1]
    assert (run.returncode, everything(course)) == (1, before)
    assert line.startswith("dltutorial: there is no git here; install it")


@pytest.mark.parametrize("mine", ["new", "new/file.sh"])
def test_what_only_the_newer_version_brings_has_its_place_or_the_update_is_refused(course, mine):
    (course.learner / mine).parent.mkdir(exist_ok=True)
    (course.learner / mine).write_text("mine\n")
    theirs = "new/file.sh" if mine == "new" else "new"
    (course.author / theirs).parent.mkdir(exist_ok=True)
    course.publish(**{theirs: "the course's\n"})
    run = course.begin_update()
    line = run.communicate()[1]
    assert "mine\n" in everything(course)
    assert line.count("\n") == run.returncode
    assert not run.returncode or "is in the way of the course's new" in line


# A hub's link: nbgitpuller alone, by its own rules


def visit(course):
    """A learner opens the link of the README's section "On a hub"; returns whether it succeeded."""
    words = [str(Path(sys.executable).parent / "gitpuller"), course.url, "main", str(course.learner)]
    return subprocess.run(words, capture_output=True).returncode == 0


def committed(course):
    solve(course.learner / EX)
    git(course.learner, "commit", "-qam", "my answer")


def deleted(course):
    (course.learner / "site.sh").unlink()
    solve(course.learner / EX)


def all_else(course):
    (course.learner / "notes.md").write_text("return 42: mine\n")
    (course.learner / "exercises" / "mine.ipynb").write_text("return 42")


def by_hand(course):
    solve(course.learner / EX)
    execute(course.learner / EX)


def on_a_branch(course):
    git(course.learner, "switch", "-qc", "mine")
    committed(course)


def of_a_chapter(course):
    edit(course.learner / CHAPTER, "a = 1", "a = 'mine'")
    execute(course.learner / CHAPTER)


LEFT = [
    by_hand, committed, deleted, all_else, on_a_branch, of_a_chapter, lock, folder_for_file, link_for_folder, merge,
    rebase, cherry_pick, stash,
]  # fmt: skip


def of_the_learner(course):
    """What of the learner's own is in the folder or in its history, and all answers that are whole there."""
    texts = [everything(course), git(course.learner, "log", "--all", "-p", "--reflog", check=False).stdout]
    words = {word for word in ("return 42", "mine", "stashed", "other") if any(word in text for text in texts)}
    files = (file.read_bytes() for file in course.learner.rglob("*") if file.is_file() and ".git/" not in str(file))
    return words | {text for text in files if b"return 42" in text}


@pytest.mark.ci
@pytest.mark.parametrize("left", LEFT)
def test_the_link_of_a_hub_loses_nothing_of_the_learners(course, left):
    left(course)
    before = of_the_learner(course)
    course.publish(**{"site.sh": "newer\n", "notes.md": "the course's\n", CHAPTER: chapter("a = 1", "print('new')")})
    assert visit(course) == (left not in (folder_for_file, link_for_folder)), "what is in the way is told"
    assert of_the_learner(course) >= before
    for file in (EX, CHAPTER):
        json.loads(course.text(file))
    assert left is not of_a_chapter or "a = 'mine'" in course.text(CHAPTER)


def test_what_the_link_of_a_hub_does_lose_is_said_where_the_link_is(course):
    """git gives the place of a file of the learner's to a folder of the course; `make update` refuses that."""
    file_for_folder(course)
    (course.learner / "notebooks").write_text("an own file")
    assert visit(course)
    told = "a file of your own in the place of one of the course's folders"
    assert ("an own file" in everything(course)) == (told not in " ".join((ROOT / "README.md").read_text().split()))


@pytest.mark.parametrize("word", ["merge-base", "fetch", "read-tree", "checkout-index", "update-ref"])
def test_a_ctrl_c_that_reaches_git_is_an_interruption(course, tmp_path, monkeypatch, word):
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncase "$*" in *{word}*) kill -INT $$; esac\nexec {shutil.which("git")} "$@"\n')
    fake.chmod(0o755)
    course.publish()
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    assert course.refused() == "dltutorial: interrupted; nothing that you have made is lost\n"


# Saved, hidden, moved, in conflict: what an update must not take for its own


@pytest.fixture
def updating():
    """hub/update.py as a module; what it sets in the environment goes again."""
    before = dict(os.environ)
    spec = importlib.util.spec_from_file_location("hub_update", ROOT / "hub" / "update.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    yield module
    os.environ.clear()
    os.environ.update(before)


def test_a_chapter_that_is_saved_while_its_newer_version_comes_stays_and_is_joined_next_time(
    course, updating, monkeypatch
):
    execute(course.learner / CHAPTER)
    course.publish(**{CHAPTER: chapter("a = 1", "print('other')")})
    before, keep = git(course.learner, "log").stdout, exercises.keep

    def save(file):
        edit(course.learner / CHAPTER, "seen", "saved just now")
        return keep(file)

    with (
        monkeypatch.context() as patch,
        pytest.raises(CourseError, match=r"00_a\.ipynb was saved just now, and stays; run make update again"),
    ):
        patch.setattr(exercises, "keep", save)
        updating.update(course.learner)
    assert "saved just now" in course.text(CHAPTER)
    assert git(course.learner, "log").stdout == before
    course.update()
    assert course.text(CHAPTER) == (course.author / CHAPTER).read_text()
    assert any("saved just now" in file.read_text() for file in course.learner.glob("notebooks/kept/*"))


def text(n, first="one", last="three"):
    return f"{first} {n}\ntwo\n2\n3\n{last}\n"


MANY = [f"many/{n:03}.txt" for n in range(400)]


@pytest.fixture
def many(course):
    """Of its many files the learner has edited two; there is a newer version of each, of others none, and new ones."""
    course.publish(**{name: text(n) for n, name in enumerate(MANY[:390])})
    git(course.learner, "pull", "-q")
    for name in (MANY[7], MANY[380]):
        (course.learner / name).write_text(text("mine"))
    solve(course.learner / EX)
    course.publish(**{name: text(n, last="newer") for n, name in enumerate(MANY[5:], 5)} | {MANY[1]: None})
    return course


def assert_whole(many, last="newer", mine=(7, 380)):
    """The newer version is there, the learner's lines are in it, and git takes nothing else for the learner's."""
    own = {EX, *(MANY[n] for n in mine)}
    for n, name in enumerate(MANY[5:], 5):
        assert many.text(name) == text("mine" if name in own else n, last=last), name
    assert not (many.learner / MANY[1]).exists()
    assert "return 42" in many.text(EX)
    assert git(many.learner, "status", "--porcelain").stdout == ""
    assert set(git(many.learner, "diff", "--name-only", "origin/main", "HEAD").stdout.split()) == own
    assert git(many.learner, "for-each-ref", "refs/dltutorial").stdout == ""
    assert not list(many.learner.glob(".update*"))


def has_come(many, name):
    """Whether the newer version of a file lies there; for a moment none does."""
    with contextlib.suppress(FileNotFoundError):
        return "newer" in many.text(name)
    return False


@pytest.mark.ci
@pytest.mark.parametrize("n", [6, 7, 20, 200, 399])
def test_what_a_learner_saves_while_the_course_is_written_stays(many, n):
    run = many.begin_update()
    while not has_come(many, MANY[5]) and run.poll() is None:
        pass
    is_newer = has_come(many, MANY[n])
    saved = text(n, "mine", "newer" if is_newer else "three")
    (many.learner / MANY[n]).write_text(saved)  # as JupyterLab does, into the file that is there
    line = run.communicate()[1]
    assert many.text(MANY[n]) == saved, line
    assert line.count("\n") == run.returncode
    assert not run.returncode or f"{MANY[n]} was saved just now, and stays; run make update again" in line
    many.update()
    found = [file.read_text() for file in many.learner.glob(f"many/{n:03}*.txt")]
    assert text(n, "mine", "newer") in found or (n == 399 and saved in found)  # a file of its own in a new one's place
    assert any("newer" in one for one in found)


@pytest.mark.ci
@pytest.mark.parametrize("begun", [5, 100, 398])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_update_that_is_ended_while_it_writes_goes_on_and_mixes_no_versions(many, begun, end):
    run = many.begin_update(start_new_session=True)
    while not has_come(many, MANY[begun]) and run.poll() is None:
        pass
    os.killpg(run.pid, end) if run.poll() is None else None
    assert run.communicate()[1] in ("", "dltutorial: interrupted; nothing that you have made is lost\n")
    many.publish(**{name: text(n, last="newest") for n, name in enumerate(MANY[5:], 5)})
    many.update()
    assert_whole(many, last="newest")


@pytest.mark.ci
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_update_that_is_ended_at_any_moment_goes_on_and_mixes_no_versions(many, tmp_path, end):
    as_it_was = shutil.copytree(many.learner, tmp_path / "as it was", symlinks=True)
    began = time.monotonic()
    many.update()
    whole_s = time.monotonic() - began
    assert_whole(many)
    moments = 24
    for moment in range(moments):
        shutil.rmtree(many.learner)
        shutil.copytree(as_it_was, many.learner, symlinks=True)
        run = many.begin_update(start_new_session=True)
        time.sleep(whole_s * moment / moments)
        os.killpg(run.pid, end)
        run.communicate()
        git(many.learner, "update-ref", "refs/remotes/origin/main", "origin/main")  # waits for a git that still ends
        many.update()
        assert_whole(many)


def strip_outputs(course, required="false"):
    """What ``nbstripout --install`` does: git sees no outputs any more, though they are on disk."""
    code = """import json, sys
text = sys.stdin.read()
found = json.loads(text)
for cell in found["cells"]:
    cell.update(outputs=[], execution_count=None)
print(json.dumps(found, indent=1, ensure_ascii=False), end="\\n" * text.endswith("\\n"))"""
    (course.learner.parent / "strip.py").write_text(code)
    git(course.learner, "config", "filter.nbstripout.clean", f"{sys.executable} {course.learner.parent}/strip.py")
    git(course.learner, "config", "filter.nbstripout.required", required)
    (course.learner / ".git" / "info").mkdir(exist_ok=True)
    (course.learner / ".git" / "info" / "attributes").write_text(
        "/notebooks/*.ipynb filter=nbstripout\n/exercises/*.ipynb filter=nbstripout\n"
    )


def kept(course, folder="notebooks"):
    return [file.read_text() for file in course.learner.glob(f"{folder}/kept/*")]


@pytest.mark.ci
@pytest.mark.parametrize("edited", ["no", "committed", "only on disk"])
def test_outputs_that_git_is_told_not_to_see_are_kept_when_a_chapter_comes_anew(course, edited):
    strip_outputs(course)
    if edited != "no":
        edit(course.learner / CHAPTER, "a = 1", "a = 'mine'")
    if edited == "committed":
        git(course.learner, "commit", "-qam", "mine")
    execute(course.learner / CHAPTER)
    if edited != "only on disk":
        assert git(course.learner, "diff").stdout == ""
    before = course.text(CHAPTER)
    course.publish(**{CHAPTER: chapter("a = 1", "print(1)", "print('other')")})
    said = course.update()
    assert kept(course) == [before]
    assert "notebooks/00_a.ipynb: as you had it, it is kept as notebooks/kept/00_a." in said
    assert ("a = 'mine'" in course.text(CHAPTER)) == (edited != "no")
    assert "print('other')" in course.text(CHAPTER)


def test_outputs_that_git_is_told_not_to_see_are_kept_when_the_course_drops_a_chapter_or_brings_an_exercise(course):
    strip_outputs(course)
    for name in (CHAPTER, EX):
        execute(course.learner / name)
    before = [course.text(name) for name in (CHAPTER, EX)]
    course.publish(**{CHAPTER: None, "notebooks/01_b.ipynb": chapter("b = 1")})
    course.update()
    assert not (course.learner / CHAPTER).exists()
    assert [*kept(course), *kept(course, "exercises")] == before


def test_a_notebook_of_which_git_has_every_byte_or_that_differs_in_line_ends_alone_is_not_copied(course):
    edit(course.learner / CHAPTER, "a = 1", "a = 'mine'")
    git(course.learner, "commit", "-qam", "mine")
    (course.learner / EX).write_bytes((course.learner / EX).read_bytes().replace(b"\n", b"\r\n"))
    git(course.learner, "config", "core.autocrlf", "input")
    course.publish(**{CHAPTER: chapter("a = 1", "print(1)", "print('other')")})
    course.update()
    assert "a = 'mine'" in course.text(CHAPTER)
    assert "newer" in course.text(EX)
    assert [*kept(course), *kept(course, "exercises")] == []


def test_a_chapter_of_which_an_editor_has_changed_the_line_ends_alone_comes_anew(course):
    (course.learner / CHAPTER).write_bytes((course.learner / CHAPTER).read_bytes().replace(b"\n", b"\r\n"))
    course.publish(**{CHAPTER: chapter("a = 2", "print(2)")})
    course.update()
    assert "a = 2" in course.text(CHAPTER)
    assert "print(1)" not in course.text(CHAPTER)


@pytest.mark.parametrize("how", ["amended", "taken back"])
def test_a_commit_that_the_course_has_taken_back_is_not_kept_as_if_it_were_the_learners(course, how):
    course.publish(**{"site.sh": "one\ntwo\nwrong\n"})
    course.update()
    git(course.author, "reset", "-q", "--hard", "HEAD^")
    if how == "amended":
        course.write("site.sh", "one\ntwo\nright\n")
        git(course.author, "commit", "-qam", "newer")
    git(course.author, "push", "-qf", "origin", "main")
    for _ in range(2):  # nor at the next try
        run = course.begin_update()
        assert "the course's history is another one by now: clone it anew" in run.communicate()[1]
        assert run.returncode == 1
    assert "wrong" in course.text("site.sh")


def test_an_edited_exercise_is_not_copied_at_each_update(course):
    solve(course.learner / EX)
    execute(course.learner / EX)
    course.publish()
    course.update()
    assert kept(course, "exercises") == []


def test_a_learners_edits_of_a_chapter_that_goes_do_not_come_into_a_new_one(course):
    lines = [f"line_{n} = {n}" for n in range(40)]
    course.publish(**{CHAPTER: chapter(*lines)})
    course.update()
    edit(course.learner / CHAPTER, "line_7 = 7", "mine = 7")
    course.publish(**{CHAPTER: None, "notebooks/09_new.ipynb": (new := chapter(*lines, "new = True"))})
    course.update()
    assert course.text("notebooks/09_new.ipynb") == new
    assert "mine = 7" in course.text(CHAPTER)


def a_link(course):
    """The learner has a link, elsewhere, where the course has a file that it changes."""
    (course.learner / "site.sh").unlink()
    (course.learner / "mine.sh").write_text("mine\n")
    (course.learner / "site.sh").symlink_to("mine.sh")


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_conflict_is_one_line_with_the_way_on_and_nothing_is_lost(course, is_committed):
    a_link(course)
    if is_committed:
        git(course.learner, "add", "-A")
        git(course.learner, "commit", "-qm", "mine")
    solve(course.learner / EX)
    course.publish(**{"site.sh": "newer\n"})
    line = course.refused()
    way_on = "rename yours, take the course's by git checkout origin/main -- site.sh, then again"
    assert line == f"dltutorial: yours and the course's cannot be joined: site.sh; {way_on}\n"
    (course.learner / "site.sh").rename(course.learner / "mine_too.sh")
    git(course.learner, *re.search("git (.*), then", line)[1].split())
    course.update()
    assert course.text("site.sh") == "newer\n"
    assert (course.learner / "mine_too.sh").readlink() == Path("mine.sh")
    assert "return 42" in course.text(EX)


def save_by_rename(file, words):
    """As many an editor does: a whole new file takes the place of the old one."""
    (file.parent / "saving").write_text(words)
    (file.parent / "saving").replace(file)


@pytest.mark.ci
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("moment", ["after the last look", "in the gap"])
@pytest.mark.parametrize("newer", ["one\ntwo\nnewer\n", None])
def test_what_is_saved_by_a_rename_at_the_last_moment_stays(course, updating, monkeypatch, moment, newer, links):
    course.publish(**{"site.sh": newer})
    file, lies, put, looks = course.learner / "site.sh", updating._lies, updating._put, []
    words = "mine\ntwo\nthree\n"

    def look(root, name):
        found = lies(root, name)
        if root / name == file:
            looks.append(name)
            save_by_rename(file, words) if len(looks) == 2 else None
        return found

    def fill(source, place):
        if place == file:
            assert not file.exists() or file.read_text() == words
            save_by_rename(file, words)
        return put(source, place)

    if not links:
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(updating, *(("_put", fill) if moment == "in the gap" else ("_lies", look)))
        if moment != "in the gap" or newer:
            line = r"site\.sh was saved just now, and stays; run make update again"
            stack.enter_context(pytest.raises(CourseError, match=line))
        updating.update(course.learner)
    if moment != "in the gap" or newer:
        assert course.text("site.sh") == "mine\ntwo\nthree\n"
        course.update()
        assert course.text("site.sh").startswith("mine\ntwo\n")
    assert not list(course.learner.glob(".update*"))


def killed(course, words):
    """An update that these words are put into is killed by them, or ends; those of ``site.sh`` are open in ``opened``.

    The words know ``name``, of the file that was just placed, and ``original``, of the function that they replace.
    """
    code = f"""
import importlib.util, os, signal
from pathlib import Path
spec = importlib.util.spec_from_file_location("hub_update", {str(ROOT / "hub" / "update.py")!r})
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
module._is_being_written = lambda file: False  # as on a network's file system
site = Path("site.sh")
opened = site.open("r+")
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
def save(text):
    opened.write(text), opened.truncate(), opened.flush()
{words}
module.update(Path.cwd())
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=course.learner, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=-1
    )
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()


AFTER_PLACING = """
place = module._Join.place
def hit(self, name, entry):
    place(self, name, entry)
    if name == "site.sh":
        ACT
        kill()
module._Join.place = hit"""
BETWEEN = """
def hit(source, file):
    if file.name == "site.sh":
        assert not site.exists()
        ACT
        kill()
    put(source, file)
put, module._put = module._put, hit"""


@pytest.mark.parametrize("newer", ["one\ntwo\nnewer\n", None])
def test_what_a_program_writes_into_a_file_as_an_update_is_killed_is_back_after_the_next(course, newer):
    course.publish(**{"site.sh": newer})
    killed(course, AFTER_PLACING.replace("ACT", "save('mine\\ntwo\\nthree\\n')"))
    said = course.update()
    assert course.text("site.sh").startswith("mine\ntwo\n")
    assert "site.sh: it was saved while the last update was at work, and lies in site.sh\n" in said
    assert not list(course.learner.glob(".update*"))
    assert git(course.learner, "for-each-ref", "refs/dltutorial").stdout == ""


def test_both_are_kept_if_a_file_is_saved_anew_after_an_update_was_killed(course):
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    killed(course, AFTER_PLACING.replace("ACT", "save('mine\\ntwo\\nthree\\n')"))
    (course.learner / "site.sh").write_text("later\ntwo\nnewer\n")
    said = course.update()
    assert course.text("site.sh") == "later\ntwo\nnewer\n"
    beside = next(course.learner.glob("site__*.sh"))
    assert beside.read_text() == "mine\ntwo\nthree\n"
    assert f"site.sh: it was saved while the last update was at work, and lies in {beside.name}\n" in said


@pytest.mark.ci
@pytest.mark.parametrize("act", ["pass", "save('mine\\ntwo\\nthree\\n')"])
def test_a_file_that_is_taken_away_as_an_update_is_killed_is_back_before_anything_else(course, act):
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    killed(course, BETWEEN.replace("ACT", act))
    assert not (course.learner / "site.sh").exists()
    course.hub.rename(course.hub.with_suffix(".away"))
    run = course.begin_update()  # which cannot reach the course
    assert "git fetch failed" in run.communicate()[1]
    assert course.text("site.sh").startswith("mine\ntwo\n")
    course.hub.with_suffix(".away").rename(course.hub)
    course.update()
    assert course.text("site.sh") == "mine\ntwo\nnewer\n"


def test_what_cannot_go_back_to_its_place_stays_where_it_is_until_it_can(course, updating, monkeypatch):
    course.publish(**{"site.sh": "one\ntwo\nnewer\n", "a.sh": "new\n"})
    killed(course, AFTER_PLACING.replace("ACT", "save('mine\\ntwo\\nthree\\n')"))
    with monkeypatch.context() as patch:
        patch.setattr(updating, "_put", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(2):
            with pytest.raises(
                CourseError, match=r"site\.sh cannot go back to its place \(No space left on device\); "
            ):
                updating.update(course.learner)
    course.update()
    assert course.text("site.sh").startswith("mine\ntwo\n")


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_learners_own_folder_of_the_name_that_an_update_uses_stays(course, kind):
    own = course.learner / ".update.partial"
    if kind == "link":
        (course.learner.parent / "elsewhere").mkdir()
        own.symlink_to(course.learner.parent / "elsewhere")
    elif kind == "folder":
        own.mkdir()
        (own / "thesis.txt").write_text("mine")
    else:
        own.write_text("mine")
    course.publish()
    assert ".update.partial is in the way of what make update puts there; rename it, then again" in course.refused()
    own.rename(course.learner / "mine")
    course.update()
    assert "newer" in course.text(EX)
    assert os.path.lexists(course.learner / "mine")


def test_a_folder_of_a_learner_that_cannot_be_written_is_named(course, updating, monkeypatch):
    course.publish(**{"new/file.sh": "new\n"})

    def refuse(source, file):
        if file.name == "file.sh":
            raise PermissionError(13, "Permission denied", str(source), None, str(file))
        put(source, file)

    put = updating._put
    monkeypatch.setattr(updating, "_put", refuse)
    with pytest.raises(CourseError) as told:
        updating.update(course.learner)
    assert str(told.value).startswith(f"cannot write {course.learner}/new/file.sh (Permission denied); ")


@pytest.mark.parametrize("how", ["sparse", "skip-worktree"])
def test_what_git_is_told_not_to_have_on_disk_stays_in_the_history_and_off_the_disk(course, how):
    notebook = {"far/00_a.ipynb": chapter("a = 1", "print('far')")}
    course.publish(**{"far/course.sh": "one\n", "far/both.sh": "one\ntwo\nthree\n"} | notebook)
    git(course.learner, "pull", "-q")
    (course.learner / "mine").mkdir()
    (course.learner / "mine" / "thesis.txt").write_text("mine\n")
    (course.learner / "far" / "both.sh").write_text("mine\ntwo\nthree\n")
    git(course.learner, "add", "-A")
    git(course.learner, "commit", "-qm", "mine")
    off = {"mine/thesis.txt": "mine\n", "far/course.sh": "newer\n", "far/both.sh": "mine\ntwo\nnewer\n"}
    if how == "sparse":
        git(course.learner, "sparse-checkout", "set", "notebooks", "exercises", "solutions")
    else:
        git(course.learner, "update-index", "--skip-worktree", *off, *notebook)
        shutil.rmtree(course.learner / "mine")
        shutil.rmtree(course.learner / "far")
    notebook["far/00_a.ipynb"] = chapter("a = 1", "print('farther')")
    course.publish(**{"far/course.sh": "newer\n", "far/both.sh": "one\ntwo\nnewer\n"} | notebook)
    course.update()
    assert "newer" in course.text(EX)
    for name, holds in off.items():
        assert git(course.learner, "show", f"HEAD:{name}").stdout == holds
        assert not (course.learner / name).exists()
    assert git(course.learner, "status", "--porcelain").stdout == ""
    git(course.learner, "update-index", "--no-skip-worktree", *off, *notebook) if how != "sparse" else None
    git(course.learner, *(("sparse-checkout", "disable") if how == "sparse" else ("checkout", ".")))
    assert {name: course.text(name) for name in off} == off


def test_a_file_that_is_on_disk_though_git_is_told_not_to_look_is_the_learners(course):
    git(course.learner, "update-index", "--skip-worktree", "site.sh")
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    course.update()
    assert course.text("site.sh") == "mine\ntwo\nnewer\n"


def test_a_repository_of_the_learners_in_the_course_stays(course):
    other = course.learner / "mine"
    git(course.learner, "init", "-q", "mine")
    (other / "thesis.txt").write_text("mine\n")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "mine")
    git(course.learner, "-c", "advice.addEmbeddedRepo=false", "add", "mine")
    git(course.learner, "commit", "-qm", "mine")
    before = git(course.learner, "ls-tree", "HEAD", "mine").stdout
    assert before.startswith("160000 commit")
    course.publish(**{"site.sh": "newer\n"})
    course.update()
    assert course.text("site.sh") == "newer\n"
    course.publish(**{"mine/file.sh": "the course's\n"})
    assert "mine is in the way of the course's mine/file.sh; rename it, then again" in course.refused()
    assert git(course.learner, "ls-tree", "HEAD", "mine").stdout == before
    assert git(course.learner, "status", "--porcelain").stdout == ""
    assert (other / "thesis.txt").read_text() == "mine\n"


@pytest.mark.parametrize("smudge", ["cat", "sed s/ACCOUNT=/ACCOUNT=m1234/"])
def test_what_a_filter_hides_from_git_is_kept_unless_git_puts_it_there_again(course, smudge):
    course.publish(**{"slurm/site.sh": "ACCOUNT=\nB=2\n"})
    git(course.learner, "pull", "-q")
    git(course.learner, "config", "filter.account.clean", "sed s/ACCOUNT=.*/ACCOUNT=/")
    git(course.learner, "config", "filter.account.smudge", smudge)
    (course.learner / ".git" / "info").mkdir(exist_ok=True)
    (course.learner / ".git" / "info" / "attributes").write_text("/slurm/*.sh filter=account\n")
    (course.learner / "slurm" / "site.sh").write_text("ACCOUNT=m1234\nB=2\n")
    course.publish(**{"slurm/site.sh": "ACCOUNT=\nB=3\n"})
    said = course.update()
    assert kept(course, "slurm") == (["ACCOUNT=m1234\nB=2\n"] if smudge == "cat" else [])
    assert ("slurm/site.sh: as you had it, it is kept as slurm/kept/site." in said) == (smudge == "cat")
    assert course.text("slurm/site.sh").endswith("B=3\n")


@pytest.mark.parametrize("fetches", ["other", "main"])
def test_the_newer_version_comes_whatever_a_clone_is_set_to_fetch(course, fetches):
    git(course.learner, "config", "remote.origin.fetch", f"+refs/heads/{fetches}:refs/remotes/origin/{fetches}")
    if fetches == "main":
        git(course.learner, "update-ref", "-d", "refs/remotes/origin/main")
    course.publish(**{"site.sh": "newer\n"})
    course.update()
    assert course.text("site.sh") == "newer\n"


def test_a_file_that_only_its_owner_may_read_stays_so(course):
    (course.learner / "site.sh").chmod(0o600)
    (course.learner / CHAPTER).chmod(0o700)
    (course.author / "pyproject.toml").chmod(0o755)
    (course.learner / "pyproject.toml").chmod(0o640)
    course.publish(**{"site.sh": "newer\n", CHAPTER: chapter("b = 1")})
    course.update()
    modes = [(course.learner / name).stat().st_mode & 0o777 for name in ("site.sh", CHAPTER, "pyproject.toml")]
    assert course.text("site.sh") == "newer\n"
    assert modes == [0o600, 0o600, 0o750]  # who runs it is git's to say


@pytest.mark.parametrize("why", ["No space left on device", "Read-only file system", "Permission denied"])
def test_a_disk_that_takes_nothing_is_not_taken_for_a_network_that_fails(course, tmp_path, monkeypatch, why):
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    says = f"echo 'fatal: cannot open .git/FETCH_HEAD: {why}' >&2; exit 128"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *fetch*) {says}; esac\nexec {shutil.which("git")} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    line = course.refused()
    assert f"FETCH_HEAD: {why}); make room in .git, and see that you may write there; then again" in line
    assert "network" not in line


@pytest.mark.parametrize("module", ["psutil", "dltutorial"])
def test_a_ctrl_c_while_an_update_loads_is_one_line(course, tmp_path, module):
    """A module of that name in its way interrupts, as the key would."""
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)\n"
    (tmp_path / f"{module}.py").write_text(code)
    run = subprocess.run(
        [sys.executable, str(ROOT / "hub" / "update.py")],
        cwd=course.learner,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "dltutorial: interrupted\n")


def test_a_name_that_a_locale_lacks_stops_no_update(course, monkeypatch):
    (course.learner / "größe.sh").write_text("mine\n")
    course.publish(**{"größe.sh": "the course's\n"})
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert "gr??e.sh: yours is now gr??e__" in course.update()
    assert course.text("größe.sh") == "the course's\n"


@pytest.mark.parametrize("output", ["nobody reads it", "it is full", "it is closed"])
def test_an_output_that_takes_nothing_stops_no_update(course, output):
    (course.learner / "notes.md").write_text("mine\n")
    course.publish(**{"notes.md": "the course's\n"})
    if output == "it is full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    to = {"nobody reads it": "| true", "it is full": ">/dev/full", "it is closed": ">&-"}[output]
    run = subprocess.run(
        [
            "bash",
            "-c",
            f'set -o pipefail; (sleep 0.2; "$0" "$1") {to}',
            sys.executable,
            str(ROOT / "hub" / "update.py"),
        ],
        cwd=course.learner,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert course.text("notes.md") == "the course's\n"
    assert git(course.learner, "for-each-ref", "refs/dltutorial").stdout == ""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_name_that_the_locale_cannot_write_is_one_like_others(course, monkeypatch, locale):
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setenv("PYTHONUTF8", "0")
    course.publish(**{"notebooks/übung ☃.md": "one\ntwo\nthree\n"})
    course.update()
    (course.learner / "notebooks" / "übung ☃.md").write_text("mine\ntwo\nthree\n")
    course.publish(**{"notebooks/übung ☃.md": "one\ntwo\nnewer\n"})
    course.update()
    assert course.text("notebooks/übung ☃.md") == "mine\ntwo\nnewer\n"


def test_a_notebook_that_is_being_saved_slowly_is_waited_for(course):
    """As on a slow disk: a half of it is there, and its program goes on writing."""
    course.publish(**{CHAPTER: chapter("a = 1", "print('other')")})
    file = course.learner / CHAPTER
    whole = file.read_text().replace("a = 1", "a = 2  # mine")
    for half in (whole[: len(whole) // 2], ""):
        file.write_text(half)
        assert "00_a.ipynb is no whole notebook: wait until it is saved" in course.refused()
    file.write_text(whole)
    course.update()
    assert "a = 2  # mine" in file.read_text()
    assert "other" in file.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has a file open")
def test_a_file_that_a_program_has_open_to_write_stays_until_it_is_closed(course):
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    with (course.learner / "site.sh").open("r+") as stream:
        stream.write("own")
        stream.flush()
        assert "site.sh was saved just now, and stays" in course.begin_update().communicate()[1]
        stream.write("\ntwo\nthree\n")
    course.update()
    assert course.text("site.sh") == "own\ntwo\nnewer\n"


@pytest.mark.parametrize("place", ["exercises", "notebooks", "site.sh"])
def test_a_folder_or_file_that_is_mounted_by_itself_is_refused_before_anything_changes(
    course, updating, monkeypatch, place
):
    course.publish(**{"site.sh": "newer\n", CHAPTER: chapter("a = 1", "print('other')")})
    mount = type("Mount", (), {"mountpoint": str((course.learner / place).resolve())})
    monkeypatch.setattr(updating.psutil, "disk_partitions", lambda **_: [mount])
    before = everything(course)
    with pytest.raises(CourseError, match=f"^{place} is mounted by itself, so no newer file can be moved there; "):
        updating.update(course.learner)
    assert everything(course) == before


def test_colours_and_checks_of_line_ends_that_a_learner_has_set_do_not_matter(course):
    colours = [f"color.{what}" for what in ("ui=always", "status=always", "status.branch=green", "status.header=red")]
    for setting in [*colours, "core.safecrlf=true", "core.autocrlf=true"]:
        git(course.learner, "config", *setting.split("="))
    (course.learner / "site.sh").write_text("mine\ntwo\nthree\n")
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    course.update()
    assert course.text("site.sh").split() == ["mine", "two", "newer"]


def test_files_that_an_update_brought_before_it_was_killed_count(course):
    course.publish(**{"site.sh": "one\ntwo\nnewer\n"})
    killed(course, AFTER_PLACING.replace("ACT", "pass"))
    assert "3 of its files are newer" in course.update()


def test_of_a_clone_that_cannot_be_taken_no_other_course_is_updated(course):
    shutil.copytree(ROOT / "hub", course.learner / "hub")
    shutil.rmtree(course.learner / "solutions")
    assert f"{course.learner} lacks solutions/, or it is not yours: git restore solutions" in course.refused()
