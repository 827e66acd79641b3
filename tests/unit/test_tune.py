"""``dltutorial tune``: workers that share a study, the trials they try, and what becomes of one that dies."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import wait_for

from dltutorial import cli, paths
from dltutorial.errors import CourseError
from dltutorial.train import tune
from dltutorial.train.tune import Knob, read_space

RATES = ("--knob", "learning_rate=1e-4..1e-1:log")
TINY = ("--preset", "smoke", "--dim", "8", "--heads", "1", "--depth", "1", "--steps", "9", "--global-batch-size", "2")


@pytest.fixture
def line(tiny_data, monkeypatch, tmp_path):
    """The command line of a worker of a tiny study."""
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    return ["tune", "--name", "study", "--data", str(tiny_data), "--patch", "4", *TINY]


def trials(folder):
    """(state, value) of each trial, as Optuna reads the journal."""
    import optuna
    from optuna.storages import JournalStorage, journal

    storage = JournalStorage(journal.JournalFileBackend(str(folder / "study" / "journal.log")))
    found = optuna.load_study(study_name="study", storage=storage).trials
    return [(trial.state.name, trial.value) for trial in found]


def test_a_space_is_read():
    words = ["learning-rate=1e-4..1e-2:log", "warmup_steps=0..40", "optimizer=adamw,lamb", "roll=true,false"]
    assert read_space(words) == {
        "learning_rate": Knob(1e-4, 1e-2, True),
        "warmup_steps": Knob(0, 40),
        "optimizer": Knob(values=("adamw", "lamb")),
        "roll": Knob(values=(True, False)),
    }


REFUSED = [
    ("eggs=1..2", "'eggs=1..2' is no knob with values; write learning_rate=1e-4..1e-2:log"),
    ("learning_rate", "'learning_rate' is no knob with values"),
    ("learning_rate=0..1:log", "'0..1:log' are no values of learning_rate, which is of type float; a range is"),
    ("learning_rate=2..1", "'2..1' are no values of learning_rate"),
    ("warmup_steps=few,many", "'few,many' are no values of warmup_steps, which is of type int"),
    ("optimizer=a..b", "'a..b' are no values of optimizer, which is of type str"),
    ("roll=0,1", "'0,1' are no values of roll"),
    ("learning_rate=1..2 --knob learning_rate=1..3", "learning_rate is named twice"),
    ("steps=1..20", "steps is to be tried and fixed; leave one out"),
    ("optimizer=eggs,ham", "must be one of adamw, sgd"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_no_space_is_one_line(line, capsys, words, told):
    assert cli.main([*line, "--trials", "1", "--knob", *words.split()]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("dltutorial: ")
    assert told in said


def test_so_many_trials_end_and_the_same_command_has_nothing_left_to_do(line, tmp_path, capsys):
    assert cli.main([*line, "--trials", "4", *RATES]) == 0
    found = trials(tmp_path)
    assert len(found) == 4
    assert {state for state, _ in found} <= {"COMPLETE", "PRUNED"}
    best = min(value for state, value in found if state == "COMPLETE")
    assert f"best: {best:.4f}, trial " in capsys.readouterr().out
    for number in range(4):
        recipe = json.loads((tmp_path / "study" / f"trial-{number:04d}" / "recipe.json").read_text())
        assert 1e-4 <= recipe["learning_rate"] <= 1e-1
    assert cli.main([*line, "--trials", "4", *RATES]) == 0
    assert trials(tmp_path) == found
    assert cli.main([*line, "--trials", "5", *RATES]) == 0
    assert trials(tmp_path)[:4] == found
    assert len(trials(tmp_path)) == 5


def test_a_poor_trial_ends_at_a_rung_and_costs_a_ninth(line, tmp_path):
    """After one good rate: those that change nothing."""
    assert cli.main([*line, "--trials", "1", "--knob", "learning_rate=1e-2,1e-9", "--sampler", "random"]) == 0
    assert cli.main([*line, "--trials", "9", "--knob", "learning_rate=1e-2,1e-9", "--sampler", "random"]) == 0
    updates = {1e-2: [], 1e-9: []}
    for folder in sorted((tmp_path / "study").glob("trial-*")):
        last = (folder / "progress.jsonl").read_text().splitlines()[-1]
        rate = json.loads((folder / "recipe.json").read_text())["learning_rate"]
        updates[rate].append(json.loads(last)["step"])
    assert set(updates[1e-2] + updates[1e-9]) <= {1, 3, 9}
    if updates[1e-2] and len(updates[1e-9]) > 3:
        assert 1 in updates[1e-9]
    assert max(updates[1e-2] + updates[1e-9]) == 9


def test_all_go_to_the_end_where_none_is_ended_early(line, tmp_path):
    assert cli.main([*line, "--trials", "3", *RATES, "--no-stop-early"]) == 0
    assert [state for state, _ in trials(tmp_path)] == ["COMPLETE"] * 3


def test_a_rate_that_diverges_is_a_poor_trial_and_no_failure(line, tmp_path, capsys):
    values = ("--knob", "learning_rate=1e18,1e19", "--clip-norm", "0", "--optimizer", "sgd")
    assert cli.main([*line, "--trials", "2", *values]) == 2
    assert [state for state, _ in trials(tmp_path)] == ["PRUNED"] * 2
    assert "no trial came to its end: all diverged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--knob", "learning_rate=1e-4..1e-2:log"], "another space"),
        ([*RATES, "--beta1", "0.5"], "another fixed"),
        ([*RATES, "--sampler", "random"], "another sampler"),
    ],
)
def test_a_study_of_another_space_is_one_line(line, tmp_path, capsys, more, what):
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    before = trials(tmp_path)
    assert cli.main([*line, "--trials", "2", *more]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert what in said
    assert "or another --name" in said
    assert trials(tmp_path) == before


def test_a_line_that_a_kill_has_cut_short_is_taken_off(line, tmp_path, capsys):
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    with (tmp_path / "study" / "journal.log").open("a") as journal:
        journal.write('{"op_code":4,"work')
    assert cli.main([*line, "--trials", "2", *RATES]) == 0
    assert "its last line was cut short by a kill" in capsys.readouterr().err
    assert len(trials(tmp_path)) == 2


@pytest.mark.parametrize("content", [b"eggs\nham\n", b'{"eggs": 3}\n', b"[1]\n", b"\xff\xfe\n", b"3\n"])
def test_a_file_that_is_no_journal_is_one_line_and_stays(line, tmp_path, capsys, content):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "journal.log").write_bytes(content)
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "is no journal of Optuna's" in said
    assert (tmp_path / "study" / "journal.log").read_bytes() == content


def test_a_study_where_nothing_can_be_written_is_one_line(line, tmp_path, capsys):
    (tmp_path / "study").write_text("a file")
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "choose a folder that all share" in said


def test_ranks_are_no_workers(line, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(CourseError, match="a worker is one process; start several as a job array"):
        tune.worker("smoke", {}, ["steps=1..2"], data=None, name="x", trials=1)


# Workers that die


def start(line, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "dltutorial", *line, *RATES, *more],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.full  # chapter 20 and the pocket cluster kill one, too
def test_a_worker_that_is_killed_loses_one_trial_and_its_budget_is_given_back(line, tmp_path):
    slow = [*line, "--steps", "200", "--trials", "4", "--no-stop-early"]
    killed = start(slow)
    wait_for((tmp_path / "study" / "trial-0000" / "recipe.json").exists)
    killed.kill()
    killed.communicate(timeout=30)
    others = [start(slow), start(slow)]
    said = [worker.communicate(timeout=240)[0] for worker in others]
    assert [worker.returncode for worker in others] == [0, 0], said
    assert [state for state, _ in trials(tmp_path)] == ["FAIL"] + ["COMPLETE"] * 4
    assert sum("trial 0 was lost with its worker; its budget is given back" in text for text in said) == 1


def test_a_worker_that_is_asked_to_end_gives_its_trial_back_at_once(line, tmp_path):
    slow = [*line, "--steps", "100000", "--trials", "1"]
    worker = start(slow)
    wait_for((tmp_path / "study" / "trial-0000" / "recipe.json").exists)
    time.sleep(0.5)
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 75, said
    assert "Traceback" not in said
    assert [state for state, _ in trials(tmp_path)] == ["FAIL"]


def test_its_files_are_a_runs(line, tmp_path):
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    assert list((tmp_path / "study" / "trial-0000" / "tensorboard").iterdir())
    assert paths.runs_dir() == tmp_path
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "study" / "trial-0000" / "tensorboard"))
    board.Reload()
    assert "score" in board.Tags()["scalars"]
