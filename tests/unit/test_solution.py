import dataclasses
import math
import types

import pytest
import torch
from chapter_code import written

from dltutorial.convergence import energy
from dltutorial.course.checks import attempts as attempt
from dltutorial.course.checks.attempts import SolutionRecipe, SolutionTask
from dltutorial.record import plots, records

TASK = SolutionTask(target=0.7, train=600, valid=200, widths=(16,))
QUICK = SolutionRecipe(loader="staged", batch_size=100, learning_rate=2**-3, steps=60, eval_every=5)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLTUTORIAL_DATA", str(tmp_path_factory.mktemp("data")))
        yield attempt.prepare(TASK)


@pytest.fixture(autouse=True)
def _same_data(file, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(file.parent))


# Attempts


def test_all_loaders_give_the_same_images(file):
    chosen = torch.tensor([5, 3, 599, 0])
    naive, lean, staged = (attempt.make_loader(name, file, TASK)(chosen) for name in ("naive", "lean", "staged"))
    torch.testing.assert_close(naive[0], staged[0])
    torch.testing.assert_close(lean[0], staged[0])
    assert naive[1].tolist() == lean[1].tolist() == staged[1].tolist()


def test_an_attempt_reaches_the_target_and_says_where_the_time_went():
    (result,) = attempt.attempts(QUICK, TASK, [0])
    assert result.reached
    assert result.accuracy >= TASK.target
    assert result.steps == result.validations[-1][0]
    assert result.steps % QUICK.eval_every == 0
    parts = result.staging_s + result.input_s + result.evaluate_s + result.step_s
    assert parts == pytest.approx(result.seconds)
    assert result.device_s == result.seconds


def test_a_learning_rate_that_is_too_large_diverges_and_ends_early():
    (result,) = attempt.attempts(dataclasses.replace(QUICK, learning_rate=1e30, steps=2000), TASK, [0])
    assert result.diverged
    assert not result.reached
    assert result.steps < 2000


def test_two_ranks_share_a_batch_and_train_the_same():
    alone, together = (attempt.attempts(dataclasses.replace(QUICK, ranks=n), TASK, [1])[0] for n in (1, 2))
    assert together.device_s == 2 * together.seconds
    n = min(len(alone.validations), len(together.validations))
    accuracy_alone, accuracy_together = (
        [accuracy for *_, accuracy in one.validations[:n]] for one in (alone, together)
    )
    assert accuracy_alone == pytest.approx(accuracy_together, abs=0.02)


# MLPerf HPC's metric and the leaderboard, as chapter 15 writes them


def result(seconds, reached=True):
    return {"seconds": seconds, "reached": reached}


def chapter_15(task=TASK, preset="smoke"):
    """The functions of a learner's notebook that write records and read them."""
    chapter = types.SimpleNamespace(preset=types.SimpleNamespace(name=preset))
    record = records.Writer("15", preset).write
    return written("15", "seconds_of", "time_to_train_s", "note", "board", task=task, chapter=chapter, record=record)


def test_time_to_train_leaves_out_the_shortest_and_the_longest():
    time_to_train_s = chapter_15()["time_to_train_s"]
    assert time_to_train_s([result(s) for s in (1, 9, 3, 2, 4)]) == 3
    assert time_to_train_s([result(1), result(1), result(1), result(1), result(0.1, reached=False)]) == math.inf


def test_the_leaderboard_ranks_by_time_and_never_what_missed_the_target():
    chapter = chapter_15()
    chapter["note"]("slow", {}, [result(3), result(5), result(4)])
    chapter["note"]("lucky", {}, [result(0.1), result(9, reached=False)])
    chapter["note"]("fast", {}, [result(7)])
    chapter["note"]("fast", {"ranks": 2}, [result(1)], "300 J, estimated")  # the newest counts
    assert chapter["board"]() == [
        ["1.", "fast", "1 s", "2 s", "1 of 1"],
        ["2.", "slow", "4 s", "4 s", "3 of 3"],
        ["–", "lucky", "not reached", "–", "1 of 2"],
    ]
    assert chapter_15(preset="laptop")["board"]() == []
    assert chapter_15(task=dataclasses.replace(TASK, target=0.8))["board"]() == []


# Energy and money


def test_the_energy_of_a_cpu_is_that_of_its_packages_and_a_counter_may_start_again(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy.machine, "device", lambda: "cpu")
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:0": "core"}
    for zone, name in zones.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(name)
        (tmp_path / zone / "energy_uj").write_text("9000000")
        (tmp_path / zone / "max_energy_range_uj").write_text("9999999")
    with energy.meter() as meter:
        for zone in zones:
            (tmp_path / zone / "energy_uj").write_text("500000")
    assert meter.energy.joules == pytest.approx(2 * 1.5)
    assert "measured (RAPL" in str(meter.energy)


def test_without_a_counter_energy_is_an_estimate_from_a_stated_power_or_not_available(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy.machine, "device", lambda: "cpu")
    with energy.meter() as meter:
        pass
    assert str(meter.energy).startswith("not available")
    estimate = energy.estimated(10, "assumed", seconds=4.0, busy_s=2.0)
    assert str(estimate) == "20 J, estimated (10 W a core, assumed; 0.50 cores busy)"


@pytest.mark.parametrize(("output", "joules"), [("900 1200 300", 1200), ("0 0", None), (str(2**64 - 2), None)])
def test_the_energy_of_a_job_is_that_of_its_largest_step(output, joules, tmp_path, monkeypatch):
    (tmp_path / "sacct").write_text(f"#!/bin/sh\necho {output}\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert energy.of_job("77").joules == joules


def test_readings_of_gpus_are_averaged_and_added():
    assert energy.from_readings("0, 100.0\n1, 50.0\n0, 300.0\n1, 50.0\n0, [N/A]\n1", 2.0).joules == 2 * (200 + 50)


def test_the_published_arithmetic_comes_out():
    published = {row["what"]: float(row["value"]) for row in plots.reference("gpt3_training")}
    prices = [row for row in plots.reference("prices") if row["instance"] == "NC6s v3"]
    usd_per_hour = {row["contract"]: float(row["usd_per_hour"]) for row in prices}
    hours = published["time on one V100"] * 365 * 24
    assert round(hours * usd_per_hour["reserved 3 years"]) == 3_045_116
    assert published["work"] / published["rate supposed"] / 3600 == pytest.approx(hours, rel=0.01)
    assert round(published["energy"] * published["grid"] / 1e3) == published["emissions"]
