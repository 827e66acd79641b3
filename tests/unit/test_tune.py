"""``dltutorial tune``: workers that share a study, the trials they try, and what becomes of one that dies."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import wait_for

from dltutorial import cli, paths
from dltutorial.config import preset
from dltutorial.errors import CourseError, DivergedError
from dltutorial.train import tune, tune_ray
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
    ("learning_rate=1e-4..inf", "'1e-4..inf' are no values of learning_rate"),
    ("warmup_steps=0..1e400", "'0..1e400' are no values of warmup_steps"),
    (f"seed=0..{'9' * 400}", "are no values of seed"),
    ("eval_every=1..3", "eval_every is tune's own"),
    ("beta1=0.1..0.9 --scheduler pbt", "copies weights from trial to trial, which Optuna cannot: add --engine ray"),
    ("optimizer=adamw,sgd --scheduler pbt --engine ray", "optimizer must be a range of a real number"),
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
    """Two rates, drawn at random: one that learns, one that changes nothing, all of whose scores are equal.

    The latter ends at the first rung as soon as the best third of those seen there are of the former.
    """
    good, poor = 1e-2, 1e-9
    assert cli.main([*line, "--trials", "12", "--knob", f"learning_rate={good},{poor}", "--sampler", "random"]) == 0
    rates, updates = [], []
    for folder in sorted((tmp_path / "study").glob("trial-*")):
        rates.append(json.loads((folder / "recipe.json").read_text())["learning_rate"])
        last = (folder / "progress.jsonl").read_text().splitlines()[-1]
        updates.append(json.loads(last)["step"])
    assert set(updates) <= {1, 3, 9}
    assert 9 in updates
    for n, (rate, end) in enumerate(zip(rates, updates, strict=True), 1):
        better = rates[:n].count(good)
        if rate == poor:
            assert (end == 1) == (better >= max(1, n // 3)), (rates[:n], updates[:n])
        elif n == better:
            assert end == 9, (rates[:n], updates[:n])


def test_all_go_to_the_end_where_none_is_ended_early(line, tmp_path):
    assert cli.main([*line, "--trials", "3", *RATES, "--scheduler", "none"]) == 0
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
    assert "its last line was cut short" in capsys.readouterr().err
    assert len(trials(tmp_path)) == 2


def test_who_lives_does_not_write_behind_half_a_line_of_one_who_died(line, tmp_path, tiny_data):
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    file = tmp_path / "study" / "journal.log"
    with tune._journal(file.parent) as storage:
        with file.open("a") as journal:
            journal.write('{"op_code":4,"work')
        storage.create_new_study([tune.optuna.study.StudyDirection.MINIMIZE], "another")
    assert all(json.loads(text)["op_code"] >= 0 for text in file.read_text().splitlines())
    assert cli.main([*line, "--trials", "2", *RATES]) == 0
    assert len(trials(tmp_path)) == 2


@pytest.mark.parametrize("alive", [False, True])
def test_a_last_line_without_its_end_is_whole_and_keeps_its_trial(line, tmp_path, capsys, alive):
    """As an editor leaves it, or a kill between the line and its end."""
    assert cli.main([*line, "--trials", "2", "--scheduler", "none", *RATES]) == 0
    file, before = tmp_path / "study" / "journal.log", trials(tmp_path)
    lines = file.read_text()
    assert lines.endswith("}\n")
    if alive:
        with tune._journal(file.parent) as storage:
            file.write_text(lines[:-1])
            storage.create_new_study([tune.optuna.study.StudyDirection.MINIMIZE], "another")
    else:
        file.write_text(lines[:-1])
        assert cli.main([*line, "--trials", "3", "--scheduler", "none", *RATES]) == 0
    assert file.read_text().startswith(lines)
    assert [json.loads(text)["op_code"] for text in file.read_text().splitlines()]
    assert trials(tmp_path)[:2] == before
    assert "cut short" not in capsys.readouterr().err


@pytest.mark.parametrize("at", [1, 20, -2])
def test_half_a_last_line_costs_no_other_line(line, tmp_path, at):
    assert cli.main([*line, "--trials", "2", "--scheduler", "none", *RATES]) == 0
    file, before = tmp_path / "study" / "journal.log", trials(tmp_path)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1].rstrip()[:at])
    assert cli.main([*line, "--trials", "3", "--scheduler", "none", *RATES]) == 0
    assert file.read_text().startswith("".join(lines[:-1]))
    assert trials(tmp_path)[0] == before[0]
    assert [state for state, _ in trials(tmp_path)].count("COMPLETE") == 3


NEVER = [
    (["global_batch_size=16,-3"], "--knob global_batch_size=-3 cannot be tried: recipe: global_batch_size=-3"),
    (["heads=1,3"], "--knob heads=3 cannot be tried: recipe: heads=3, but heads must divide dim=8"),
    (["heads=1..4"], "--knob heads=3 cannot be tried: recipe: heads=3, but heads must divide dim=8"),
    (["learning_rate=1e-4,1e-3", "depth=2,0"], "--knob depth=0 cannot be tried"),
    (["depth=0,2", "heads=1,2"], "--knob depth=0 cannot be tried"),
    (["beta1=0.5..1.5"], "--knob beta1=1.5 cannot be tried: recipe: beta1=1.5, but beta1 must be smaller than 1"),
    (["warmup_steps=0..40"], "--knob warmup_steps=40 cannot be tried"),
    (["optimizer=adamw,eggs"], "--knob optimizer=eggs cannot be tried"),
    (["tensor=1,2"], "--knob tensor=2 cannot be tried"),
    (["workers=0,9999"], "--knob workers=9999 cannot be tried: workers 9,999"),
    (["dim=12,8", "heads=1,3"], "--knob dim=8 --knob heads=3 cannot be tried: recipe: heads=3"),
]


@pytest.mark.parametrize("engine", ["optuna", "ray"])
@pytest.mark.parametrize(("words", "told"), NEVER, ids=[" ".join(words) for words, _ in NEVER])
def test_a_value_that_can_never_be_is_told_before_anything_begins(line, tmp_path, capsys, words, told, engine):
    for word in words:  # what is tried is not fixed
        if (option := f"--{word.partition('=')[0].replace('_', '-')}") in line:
            del line[line.index(option) : line.index(option) + 2]
    knobs = [part for word in words for part in ("--knob", word)]
    assert cli.main([*line, "--trials", "1", *knobs, "--engine", engine]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert told in said
    assert not (tmp_path / "study").exists()


def test_values_that_fit_each_other_need_not_fit_the_preset(line, tmp_path):
    """Whose dim three heads cannot share."""
    assert preset("smoke").dim % 3
    words = " ".join(line).replace("--dim 8 --heads 1", "--knob heads=3,6 --knob dim=12,24").split()
    assert cli.main([*words, "--trials", "2"]) == 0
    assert len(trials(tmp_path)) == 2


NO_JOURNALS = [
    b"eggs\nham\n", b'{"eggs": 3}\n', b"[1]\n", b"\xff\xfe\n", b"3\n", b"one line", b"\n", b'{"op_code":99}\n',
    b'{"op_code":0,"worker_id":"x"\n', b'{"op_code":0}\nham\n', b'{"op_code":0}\nham',
]  # fmt: skip


@pytest.mark.parametrize("content", NO_JOURNALS)
def test_a_file_that_is_no_journal_is_one_line_and_stays(line, tmp_path, capsys, content):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "journal.log").write_bytes(content)
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "is no journal of Optuna's" in said
    assert (tmp_path / "study" / "journal.log").read_bytes() == content
    assert sorted(file.name for file in (tmp_path / "study").iterdir()) == ["journal.log"]


def test_a_link_or_a_pipe_for_a_journal_is_one_line(line, tmp_path, capsys):
    (tmp_path / "study").mkdir()
    other = tmp_path / "notes.txt"
    other.write_text("mine, without an end")
    (tmp_path / "study" / "journal.log").symlink_to(other)
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    assert "is no journal of Optuna's (a link)" in capsys.readouterr().err
    assert other.read_text() == "mine, without an end"
    (tmp_path / "study" / "journal.log").unlink()
    os.mkfifo(tmp_path / "study" / "journal.log")
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    assert "a pipe or device, no regular file" in capsys.readouterr().err


def test_a_folder_that_holds_something_else_is_left_alone(line, tmp_path, capsys):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "recipe.json").write_text("{}")
    for more in ([], ["--engine", "ray"]):
        assert cli.main([*line, "--trials", "1", *RATES, *more]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "another --name" in said
        assert [file.name for file in (tmp_path / "study").iterdir()] == ["recipe.json"]


def test_trials_without_their_journal_are_left_alone(line, tmp_path, capsys):
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    capsys.readouterr()
    (journal := next(tmp_path.rglob("journal.log"))).write_bytes(b"")
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    assert "holds trials, but their journal is empty; take another --name" in capsys.readouterr().err
    assert journal.read_bytes() == b""


def test_a_study_that_was_renamed_is_one_line(line, tmp_path, capsys):
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    capsys.readouterr()
    (tmp_path / "study").rename(tmp_path / "other")
    words = [word if word != "study" else "other" for word in line]
    assert cli.main([*words, "--trials", "2", *RATES]) == 2
    assert "its journal is of the study study" in capsys.readouterr().err


def test_a_study_has_one_data_set(line, tmp_path, capsys):
    import shutil

    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    other = tmp_path / "other"
    shutil.copytree(line[line.index("--data") + 1], other)
    stds = other / "stats" / "global_stds.npy"
    import numpy as np

    np.save(stds, np.load(stds) * 2)
    assert cli.main([*line, "--trials", "2", *RATES, "--data", str(other)]) == 2
    assert "has another data set" in capsys.readouterr().err
    assert len(trials(tmp_path)) == 1


def test_a_study_where_nothing_can_be_written_is_one_line(line, tmp_path, capsys):
    (tmp_path / "study").write_text("a file")
    assert cli.main([*line, "--trials", "1", *RATES]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "choose a folder that all share" in said


def test_ranks_are_no_workers(line, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(CourseError, match="a worker is one process; start several as a job array"):
        tune.tune("smoke", {}, ["steps=1..2"], data=None, name="x", trials=1, engine="optuna", scheduler="asha")


# Workers that die


def start(line, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "dltutorial", *line, *RATES, *more],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.ci  # chapter 20 and the pocket cluster kill one, too
def test_a_worker_that_is_killed_loses_one_trial_and_its_budget_is_given_back(line, tmp_path):
    slow = [*line, "--steps", "200", "--trials", "4", "--scheduler", "none"]
    killed = start(slow)
    wait_for((tmp_path / "study" / "trial-0000" / "recipe.json").exists)
    killed.kill()
    killed.communicate(timeout=30)
    others = [start(slow), start(slow)]
    said = [worker.communicate(timeout=240)[0] for worker in others]
    assert [worker.returncode for worker in others] == [0, 0], said
    assert [state for state, _ in trials(tmp_path)] == ["FAIL"] + ["COMPLETE"] * 4
    assert sum("trial 0 was lost with its worker; its budget is given back" in text for text in said) == 1


def test_a_worker_shows_that_it_lives_before_its_first_update(line, tmp_path, monkeypatch):
    """Compiling, validating, or looking at all samples may take longer than others wait."""

    def train(*_, **options):
        (lock,) = (tmp_path / "study").glob(".worker-*.lock")
        os.utime(lock, (0, 0))
        assert wait_for(lambda: lock.stat().st_mtime > 0)
        raise DivergedError("enough")

    monkeypatch.setattr(tune.run, "train", train)
    assert cli.main([*line, "--trials", "1", *RATES]) == 2  # for no trial came to its end
    assert [state for state, _ in trials(tmp_path)] == ["PRUNED"]


@pytest.mark.ci
def test_the_trial_of_a_worker_that_is_stopped_is_given_back_after_a_while(line, tmp_path, monkeypatch, capsys):
    """It holds its lock: others would wait for it as long as it exists. Going on, it sees what it has lost."""
    slow = [*line, "--steps", "200", "--trials", "1", "--scheduler", "none"]
    stopped = start(slow)
    wait_for((tmp_path / "study" / "trial-0000" / "recipe.json").exists)
    stopped.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(tune, "_SILENT_S", 20.0)
    monkeypatch.setattr(tune, "_TELL_S", 1.0)
    try:
        assert cli.main([*slow, *RATES]) == 0
        said = capsys.readouterr().out
        assert "waits for the last trials of other workers" in said
        assert "trial 0 was lost with its worker" in said
        stopped.send_signal(signal.SIGCONT)
        ends, _ = stopped.communicate(timeout=60)
        assert stopped.returncode == 0, ends
        assert "trial 0 was taken back by another worker" in ends
    finally:
        stopped.kill()
    assert [state for state, _ in trials(tmp_path)] == ["FAIL", "COMPLETE"]


def test_a_lock_that_a_killed_worker_has_left_is_waited_for_a_while_only(line, tmp_path, monkeypatch, capsys):
    """Also where the runs folder is a relative path: a link for a lock would then lead nowhere, and bind for ever."""
    from optuna.storages import journal

    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "journal.log").touch()
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("DLTUTORIAL_RUNS", tmp_path.name)
    killed = journal.JournalFileOpenLock(f"{tmp_path.name}/study/journal.log")
    killed.acquire()
    monkeypatch.setattr(journal, "JournalFileOpenLock", functools.partial(journal.JournalFileOpenLock, grace_period=3))
    monkeypatch.setattr(tune, "_LOCKED_S", 0.1)
    assert cli.main([*line, "--trials", "1", *RATES]) == 0
    assert [state for state, _ in trials(tmp_path)] == ["COMPLETE"]
    said = [text for text in capsys.readouterr().err.splitlines() if "journal.log.lock" in text]
    assert said == [
        f"waits for {tmp_path.name}/study/journal.log.lock, which another worker holds: 3 s if that one was killed"
    ]


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
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    board = EventAccumulator(str(tmp_path / "study" / "trial-0000" / "tensorboard"))
    board.Reload()
    (score,) = board.Scalars("score")
    ((_, value),) = trials(tmp_path)
    assert score.value == pytest.approx(value)
    told = [HParamsPluginData.FromString(text) for text in board.PluginTagToContent("hparams").values()]
    (began,) = (one.session_start_info for one in told if one.WhichOneof("data") == "session_start_info")
    (knob,) = began.hparams.items()
    recipe = json.loads((tmp_path / "study" / "trial-0000" / "recipe.json").read_text())
    assert (knob[0], knob[1].number_value) == ("learning_rate", recipe["learning_rate"])


def test_wandb_gets_a_group_of_trials_a_table_and_the_journal(line, tmp_path):
    assert cli.main([*line, "--trials", "2", *RATES, "--track", "wandb"]) == 0
    study = tmp_path / "study"
    import wandbfile

    for number in range(2):
        trial = study / f"trial-{number:04d}"
        wait_for(lambda trial=trial: "valid/rmse_ratio_to_persistence" in wandbfile.read(trial))
    (table,) = (study / "study-2").rglob("*.table.json")  # W&B's own file
    told = json.loads(table.read_text())
    assert told["columns"] == ["trial", "state", "score", "learning_rate"]
    assert [(row[1], row[2]) for row in told["data"]] == trials(tmp_path)
    (kept,) = (study / "study-2").glob("wandb/offline-run-*/*.wandb")
    wait_for(lambda: b"journal.log" in kept.read_bytes())  # a process of W&B's own writes
    from wandb.proto.wandb_internal_pb2 import Record

    def group(file):
        return {Record.FromString(message).run.run_group for message in wandbfile.messages(file.read_bytes())}

    for file in study.glob("trial-*/wandb/offline-run-*/*.wandb"):
        wait_for(lambda file=file: "study" in group(file))


def test_the_last_of_a_budget_goes_to_its_end_where_none_has(line, tmp_path, capsys):
    """A trial that was killed still counts at its rungs, so that all others may be worse."""
    import optuna
    from optuna.storages import JournalStorage, journal
    from optuna.trial import TrialState

    storage = JournalStorage(journal.JournalFileBackend(str(tmp_path / "journal.log")))
    study = optuna.create_study(storage=storage)
    states = TrialState.FAIL, TrialState.PRUNED
    for state in states:
        study.tell(study.ask(), state=state)
    assert tune._is_last_hope(study, 2)
    assert not tune._is_last_hope(study, 3)
    study.tell(study.ask(), 1.0)
    assert not tune._is_last_hope(study, 2)


# Ray


def test_without_ray_one_line_says_how_to_get_it(line, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main([*line, "--trials", "1", *RATES, "--engine", "ray"]) == 2
    assert "--engine ray needs Ray" in (said := capsys.readouterr().err)
    assert "pip install -e '.[tune]'" in said


def test_rays_workers_find_data_and_runs_wherever_they_stand(line, tmp_path, tiny_data, monkeypatch):
    from dltutorial.train import tune_ray

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DLTUTORIAL_RUNS")  # ./runs
    seen = []
    monkeypatch.setattr(tune_ray, "lead", lambda search, scheduler: seen.append(search))
    words = [os.path.relpath(word) if word == str(tiny_data) else word for word in line]
    assert cli.main([*words, "--trials", "1", *RATES, "--engine", "ray"]) == 0
    assert seen[0].folder == tmp_path / "runs" / "study"
    assert seen[0].data.is_absolute() and seen[0].data.resolve() == tiny_data.resolve()


def test_a_trial_goes_on_with_another_ones_weights_and_its_own_rate(line, tmp_path, tiny_data):
    """What population-based training does at a rung; here without Ray."""
    import torch

    from dltutorial.config import preset
    from dltutorial.data import store
    from dltutorial.errors import Interrupted
    from dltutorial.train import checkpoint, run, tune_ray
    from dltutorial.train.forecasting import fingerprint, make_task

    train = store.open_split(tiny_data, "train")
    channels, rows, columns = train.shape
    fixed = {"n_channels": channels, "n_lat": rows, "n_lon": columns, "patch": 4, "dim": 8, "heads": 1, "depth": 1}
    fixed |= {"steps": 9, "global_batch_size": 2}
    search = tune.Search(preset("smoke"), fixed, {}, tiny_data, fingerprint(train), tmp_path, 1)
    good, _ = search.recipe({"learning_rate": 1e-2})
    seen = []
    with pytest.raises(Interrupted):
        for record in run.train(
            make_task(good, tiny_data), good, tmp_path / "good", progress=False, asked_to_end=lambda: bool(seen)
        ):
            seen.append(record)
    mine, _ = search.recipe({"learning_rate": 1e-4})
    tune_ray._go_on_from(tmp_path / "good" / "checkpoints", mine, tmp_path / "mine")
    both = [checkpoint.newest(tmp_path / name / "checkpoints") for name in ("good", "mine")]
    assert both[0].step == both[1].step == seen[-1].step
    assert all(torch.equal(both[0].model[name], both[1].model[name]) for name in both[0].model)
    records = list(run.train(make_task(mine, tiny_data), mine, tmp_path / "mine", resume=True, progress=False))
    assert records[0].step > seen[-1].step
    assert max(record.learning_rate for record in records) <= 1e-4


def test_two_leaders_of_one_study_by_ray_do_not_share_its_folder(tmp_path, monkeypatch):
    """Ray takes its time to start; the folder is taken before."""
    search = tune.Search(preset("smoke"), {}, {}, tmp_path, "", tmp_path / "runs" / "study", 2)

    @contextlib.contextmanager
    def slow():
        with pytest.raises(CourseError, match="is there already; Ray begins anew: take another --name"):
            tune_ray.lead(search, "asha")
        raise CourseError("Ray does not start")
        yield

    monkeypatch.setattr(tune_ray, "_ray", slow)
    for _ in range(2):  # nor is it taken for ever
        with pytest.raises(CourseError, match="Ray does not start"):
            tune_ray.lead(search, "asha")
    (tmp_path / "runs" / "study").mkdir()
    (tmp_path / "runs" / "study" / "trials.csv").touch()
    with pytest.raises(CourseError, match="is there already"):
        tune_ray.lead(search, "asha")
    assert (tmp_path / "runs" / "study" / "trials.csv").exists()


def test_a_lock_that_is_gone_with_its_folder_is_a_file_that_is_gone(tmp_path):
    class Gone:
        grace_period = 30

        def acquire(self):
            pass

        def release(self):
            raise RuntimeError("Error: did not possess lock")  # Optuna's word

    with pytest.raises(FileNotFoundError, match=r"journal\.log"), tune._held(Gone(), tmp_path / "journal.log"):
        pass
