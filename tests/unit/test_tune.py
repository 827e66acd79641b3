"""``tune.py`` and ``tune_ray.py`` as chapter 20 writes them."""

import os
import subprocess
import sys

import pytest
from waiting import wait_for

from dltutorial.course import scripts

LINE = ("--trials", "6", "--epochs", "9", "--batch", "2", "--vit", "4", "8", "1", "1")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the scripts, in which the test runs them."""
    monkeypatch.chdir(tmp_path)
    scripts.take("vit.py", "pairs.py", "train.py", "tune.py", "tune_ray.py")
    return tmp_path


def start(script, data, *options):
    line = [sys.executable, script, str(data), *LINE, *options]
    return subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_trials(file):
    """The trials of a study, as Optuna reads them from its journal."""
    import optuna
    from optuna.storages import JournalStorage, journal

    storage = JournalStorage(journal.JournalFileBackend(str(file)))
    studies = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name="study", storage=storage).trials if studies else []


@pytest.mark.ci
def test_a_killed_worker_costs_one_trial(tiny_data, folder):
    file = folder / "study.log"
    workers = [start("tune.py", tiny_data), start("tune.py", tiny_data)]

    def worker_of_the_second_trial():
        trials = read_trials(file) if file.exists() else []
        return len(trials) > 1 and trials[1].user_attrs.get("worker")

    killed = wait_for(worker_of_the_second_trial)
    by_number = {worker.pid: worker for worker in workers}
    by_number.pop(killed).kill()
    (survivor,) = by_number.values()
    output, _ = survivor.communicate(timeout=240)
    assert survivor.returncode == 0, output
    states = [trial.state.name for trial in read_trials(file)]
    assert states.count("RUNNING") == 1
    assert states.count("COMPLETE") + states.count("PRUNED") == 6
    assert "best: " in output

    again = start("tune.py", tiny_data)
    again.communicate(timeout=240)
    assert [trial.state.name for trial in read_trials(file)] == states


def test_without_ray_one_line_says_how_to_get_it(tiny_data, folder):
    (folder / "ray.py").write_text("raise ImportError")
    worker = start("tune_ray.py", tiny_data)
    output, _ = worker.communicate(timeout=240)
    assert worker.returncode == 1
    assert output.splitlines() == ["Ray is not installed: .venv/bin/pip install -e '.[tune]'"]


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_ray_leads_a_study(tiny_data, folder, scheduler):
    worker = start("tune_ray.py", tiny_data, "--scheduler", scheduler, "--out", "study")
    output, _ = worker.communicate(timeout=280)
    assert worker.returncode == 0, output
    assert "best: " in output
