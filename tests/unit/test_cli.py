"""Every mistake ends in one clear line on stderr and a status that is not 0; Ctrl-C leaves nothing half done."""

import subprocess
import sys

import nbformat
import pytest

from dltutorial import __version__, cli
from dltutorial.course import doctor
from dltutorial.errors import CourseError

pytestmark = pytest.mark.usefixtures("one_thread")
COMMANDS = ["doctor", "data", "train", "run", "exercises", "pocket"]


def call(*argv):
    """The exit status of a command line, run in this process."""
    try:
        return cli.main([str(word) for word in argv])
    except SystemExit as leaving:
        return leaving.code


@pytest.fixture
def refused(capsys):
    """Run a command line that must fail; returns its one line."""

    def run(*argv):
        assert call(*argv) == 2
        stderr = capsys.readouterr().err
        assert len(stderr.splitlines()) == 1, stderr
        assert stderr.startswith("dltutorial")
        return stderr

    return run


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one empty chapter that has one parameter."""
    cell = nbformat.v4.new_code_cell("steps = 3", metadata={"tags": ["parameters"]})
    folder = tmp_path / "notebooks"
    folder.mkdir()
    about = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=about), folder / "07_tiny.ipynb")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "top")
def test_help_explains_each_command(command, capsys):
    assert call(*command, "--help") == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("usage: dltutorial")
    assert command or all(name in stdout for name in COMMANDS)


def test_python_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "dltutorial", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"dltutorial {__version__}\n")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CourseError("no such thing; choose another"), 2, "dltutorial: no such thing; choose another\n"),
        (KeyboardInterrupt(), 130, "dltutorial: interrupted\n"),
        (OSError(28, "No space left on device"), 2, "dltutorial: [Errno 28] No space left on device. The disk or"),
    ],
)
def test_an_error_that_says_what_to_do_is_one_line(error, status, line, monkeypatch, capsys):
    def report(measure):
        raise error

    monkeypatch.setattr(doctor, "report", report)
    assert call("doctor") == status
    stderr = capsys.readouterr().err
    assert stderr.startswith(line)
    assert len(stderr.splitlines()) == 1


def test_an_error_that_nobody_foresaw_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(doctor, "report", lambda measure: {}["a mistake in the course"])
    with pytest.raises(KeyError, match="a mistake in the course"):
        call("doctor")


REFUSED = [
    (["nonsense"], "nonsense"),
    ([], "COMMAND"),
    (["run", "99"], "no notebook '99'"),
    (["run", "-p", "stepz", "3"], "stepz"),
    (["run", "--jobs", "0"], "--jobs"),
    (["run", "--timeout", "nan"], "--timeout: nan is not from 1 to 604,800"),
    (["run", "--preset", "huge"], "huge"),
    (["run", "--out", "notebooks"], "notebooks is not empty; choose another folder"),
    (["data", "weather", "--preset", "huge"], "huge"),
    (["data", "check"], "--source"),
    (["data"], "WHAT"),
    (["pocket", "up", "--nodes", "1000"], "--nodes: 1000 is not from 1 to 64"),
    (["exercises", "burn"], "burn"),
    (["exercises", "reset"], "exercises reset: the following arguments are required: NAME; see dltutorial exercises"),
]


@pytest.mark.parametrize(("argv", "words"), REFUSED, ids=[" ".join(argv) for argv, _ in REFUSED])
def test_what_cannot_be_is_refused_in_one_line(argv, words, refused, course, tmp_path):
    assert words in refused(*argv)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["train", "run", "doctor", "data weather"])
def test_an_unknown_preset_in_the_environment_is_named(command, refused, course, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "nonsense")
    assert "DLTUTORIAL_PRESET 'nonsense'" in refused(*command.split())
