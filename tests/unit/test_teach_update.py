"""What becomes of a learner's work when the course changes under it: real git, real nbgitpuller, real archives."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_teach_exercises import CODE, edit, notebook

from dltutorial import advice
from dltutorial.course import exercises, update
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


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path)


def solve(file, answer="return 42"):
    edit(file, "raise NotImplementedError", answer)


def execute(file):
    edit(file, '"outputs": []', '"outputs": [{"output_type": "stream", "name": "stdout", "text": "seen"}]')
    edit(file, '"execution_count": null', '"execution_count": 7')


def everything(course):
    """All that is in the learner's folder, git's own files left out, as one text."""
    files = [path for path in course.learner.rglob("*") if path.is_file() and ".git/" not in str(path)]
    return "".join(file.read_text() for file in files)


def test_update_brings_the_newer_version_to_who_has_changed_nothing(course):
    course.publish()
    assert update.update(course.learner) == 0
    assert "newer" in course.text(EX)
    assert git(course.learner, "status", "--porcelain").stdout == ""
    assert update.update(course.learner) == 0


def test_update_keeps_an_edited_exercise_and_puts_the_newer_one_beside(course, capsys):
    solve(course.learner / EX)
    execute(course.learner / EX)
    before = course.text(EX)
    course.publish()
    assert update.update(course.learner) == 0
    assert course.text(EX) == before
    assert "newer" in course.text("exercises/00_a.new.ipynb")
    assert capsys.readouterr().out.count("00_a.new.ipynb") == 1
    assert git(course.learner, "log", "-1", "--format=%s").stdout == "newer\n"


def test_update_replaces_what_was_only_run_and_keeps_its_outputs(course):
    for name in (EX, CHAPTER):
        execute(course.learner / name)
    course.publish(**{CHAPTER: chapter("a = 2", "print(1)")})
    update.update(course.learner)
    assert "newer" in course.text(EX)
    assert "a = 2" in course.text(CHAPTER)
    for name in (EX, CHAPTER):
        assert "seen" in next((course.learner / name).parent.joinpath("kept").iterdir()).read_text()
    assert git(course.learner, "status", "--porcelain").stdout == ""


def test_update_keeps_an_edited_chapter_and_an_edited_script(course, capsys):
    edit(course.learner / CHAPTER, "a = 1", "a = 'mine'")
    (course.learner / "site.sh").write_text("mine\n")
    course.publish(**{CHAPTER: chapter("a = 2", "print(1)"), "site.sh": "newer script\n"})
    update.update(course.learner)
    assert "'mine'" in course.text(CHAPTER)
    assert "a = 2" in course.text("notebooks/00_a.new.ipynb")
    assert (course.text("site.sh"), course.text("site.new.sh")) == ("mine\n", "newer script\n")
    assert "site.sh holds your work and stays; its new version is site.new.sh" in capsys.readouterr().out


def test_update_keeps_a_file_of_the_learner_where_the_course_brings_one_and_one_that_it_drops(course, capsys):
    (course.learner / "notes.md").write_text("mine\n")
    (course.learner / "site.sh").write_text("mine\n")
    course.publish(**{"notes.md": "the course's\n", "site.sh": None})
    update.update(course.learner)
    assert [course.text(name) for name in ("notes.md", "notes.new.md", "site.sh")] == [
        "mine\n",
        "the course's\n",
        "mine\n",
    ]
    assert "site.sh is no part of the course any more; yours is kept" in capsys.readouterr().out


@pytest.mark.parametrize("staged_only", [True, False])
def test_update_keeps_what_the_learner_has_staged_or_committed(course, staged_only):
    solve(course.learner / EX)
    git(course.learner, "add", "-A")
    if not staged_only:
        git(course.learner, "commit", "-qm", "my answer")
    course.publish()
    assert update.update(course.learner) == 0
    assert "return 42" in course.text(EX)
    assert "newer" not in course.text(EX)
    assert "newer" in course.text("exercises/00_a.new.ipynb")
    assert update.update(course.learner) == 0


def test_update_keeps_a_committed_edit_of_an_exercise_that_the_course_drops(course):
    solve(course.learner / EX)
    git(course.learner, "commit", "-qam", "my answer")
    course.publish(**{EX: None, "solutions/00_a.ipynb": None, "solutions/01_b.ipynb": notebook(CODE)})
    assert update.update(course.learner) == 0
    assert "return 42" in course.text(EX)


def test_an_update_that_was_killed_halfway_is_put_right_by_the_next(course, monkeypatch):
    solve(course.learner / EX)
    course.publish()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(update, "_merge", killed)
        patch.setattr(update, "_recover", lambda root: None)
        with pytest.raises(KeyboardInterrupt):
            update.update(course.learner)
    assert "return 42" in everything(course)
    assert "return 42" not in course.text(EX)
    assert update.update(course.learner) == 0
    assert "return 42" in course.text(EX)
    assert "newer" in course.text("exercises/00_a.new.ipynb")


def test_what_makes_an_update_impossible_is_told_in_one_line_and_changes_nothing(course):
    solve(course.learner / EX)
    before = everything(course)
    shutil.move(course.hub, course.hub.with_name("gone"))
    with pytest.raises(CourseError, match=r"^the course cannot be fetched, and nothing has changed; [^\n]*\)$"):
        update.update(course.learner)
    git(course.learner, "checkout", "-q", "--detach")
    with pytest.raises(CourseError, match="git switch main"):
        update.update(course.learner)
    shutil.rmtree(course.learner / ".git")
    with pytest.raises(CourseError, match="no git clone; unpack a newer release over it"):
        update.update(course.learner)
    assert everything(course) == before


def test_git_pull_refuses_loses_nothing_and_update_then_succeeds(course):
    solve(course.learner / EX)
    course.publish()
    told = git(course.learner, "pull", check=False)
    assert told.returncode != 0
    assert advice.of_words("git", told.stderr).name == "git-pull"
    assert "return 42" in course.text(EX)
    assert update.update(course.learner) == 0
    assert "return 42" in course.text(EX)


def test_after_gits_own_advice_the_notebook_is_whole_and_update_tells_how_to_go_on(course):
    solve(course.learner / EX)
    course.publish()
    git(course.learner, "stash")
    git(course.learner, "pull", "-q")
    assert git(course.learner, "stash", "pop", check=False).returncode != 0
    json.loads(course.text(EX))
    with pytest.raises(CourseError, match=rf"git checkout --theirs -- {EX}, then run git reset"):
        update.update(course.learner)
    git(course.learner, "checkout", "--theirs", "--", EX)
    git(course.learner, "reset", "-q")
    assert update.update(course.learner) == 0
    assert "return 42" in course.text(EX)
    assert "newer" in course.text("exercises/00_a.new.ipynb")


def test_a_commit_and_a_pull_that_meet_a_conflict_leave_a_whole_notebook_and_a_way_out(course):
    solve(course.learner / EX)
    git(course.learner, "commit", "-qam", "my answer")
    course.publish()
    assert git(course.learner, "pull", "-q", "--no-rebase", check=False).returncode != 0
    assert "return 42" in "".join("".join(cell["source"]) for cell in json.loads(course.text(EX))["cells"])
    with pytest.raises(CourseError, match="git merge --abort ends it"):
        update.update(course.learner)
    git(course.learner, "merge", "--abort")
    assert update.update(course.learner) == 0
    assert "return 42" in course.text(EX)


def test_update_tells_where_git_has_put_an_exercise_away(course, capsys):
    solve(course.learner / EX)
    course.publish()
    git(course.learner, "stash")
    git(course.learner, "pull", "-q")
    assert "return 42" not in course.text(EX)
    capsys.readouterr()
    assert update.update(course.learner) == 0
    command = capsys.readouterr().out.splitlines()[0].partition("; ")[2].partition(" brings")[0]
    git(course.learner, *command.split()[1:])
    assert "return 42" in course.text(EX)
    assert update.update(course.learner) == 0
    assert "put your" not in capsys.readouterr().out


@pytest.fixture
def pulled(course, tmp_path):
    """The learner's folder is nbgitpuller's, as on a hub; ``pulled()`` is another click on the link."""
    puller = pytest.importorskip("nbgitpuller.pull")
    shutil.rmtree(course.learner)

    def click():
        return list(puller.GitPuller(course.url, str(course.learner), branch="main").pull())

    click()
    return click


def test_nbgitpuller_keeps_an_edited_exercise_whole_and_build_puts_the_newer_one_beside(course, pulled):
    solve(course.learner / EX)
    execute(course.learner / EX)
    before = course.text(EX)
    course.publish()
    pulled()
    assert course.text(EX) == before
    assert exercises.build(course.learner) == 0
    assert course.text(EX) == before
    assert "newer" in course.text("exercises/00_a.new.ipynb")
    pulled()
    assert update.update(course.learner) == 0
    assert course.text(EX) == before


def test_nbgitpuller_and_then_build_bring_the_newer_version_of_an_exercise_that_was_only_run(course, pulled):
    execute(course.learner / EX)
    course.publish()
    pulled()
    assert exercises.build(course.learner) == 0
    assert "newer" in course.text(EX)
    assert not (course.learner / "exercises/00_a.new.ipynb").exists()
    course.publish(**{"site.sh": "again\n"})
    pulled()
    assert course.text("site.sh") == "again\n"


def test_update_works_in_a_folder_of_nbgitpullers_and_the_link_goes_on_working(course, pulled):
    solve(course.learner / EX)
    course.publish()
    pulled()
    course.publish(**{"site.sh": "once more\n"})
    assert update.update(course.learner) == 0
    course.publish(**{"site.sh": "and more\n"})
    pulled()
    assert course.text("site.sh") == "and more\n"
    assert "return 42" in course.text(EX)


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
