import dataclasses
import math
import subprocess
import sys
import types

import pytest
import torch
from chapters import written

from dltutorial import paths
from dltutorial.convergence import energy
from dltutorial.course.checks import attempts as attempt
from dltutorial.course.checks.attempts import SolutionRecipe, SolutionTask
from dltutorial.data.surveys import Survey
from dltutorial.record import plots, records
from dltutorial.train.step import learning_rate

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


# Recipes and tasks


def test_a_recipe_names_the_knobs_that_were_turned():
    assert SolutionRecipe().describe() == "none"
    assert SolutionRecipe(loader="lean", learning_rate=0.125).describe() == "learning_rate 0.125, loader lean"


def test_the_rate_rises_over_the_warm_up_and_then_stays():
    rates = [learning_rate(step, SolutionRecipe(warmup_steps=4, learning_rate=1.0)) for step in (0, 1, 2, 3, 4, 1400)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert learning_rate(0, SolutionRecipe(learning_rate=1.0)) == 1


# Images


def test_all_loaders_give_the_same_images(file):
    chosen = torch.tensor([5, 3, 599, 0])
    naive, lean, staged = (attempt.make_loader(name, file, TASK)(chosen) for name in ("naive", "lean", "staged"))
    torch.testing.assert_close(naive[0], staged[0])
    torch.testing.assert_close(lean[0], staged[0])
    assert naive[1].tolist() == lean[1].tolist() == staged[1].tolist()


def test_the_mean_training_image_is_subtracted(file):
    x_NF, _ = attempt.whole(file, "train", TASK)
    assert x_NF.shape == (600, 256)
    torch.testing.assert_close(x_NF.mean(0), torch.zeros(256), atol=1e-5, rtol=0)


def test_images_are_simulated_once(file, monkeypatch):
    monkeypatch.setattr(attempt.lenses, "simulate", lambda *args, **kwargs: pytest.fail("simulated again"))
    assert attempt.prepare(TASK) == file


# Attempts


def test_an_attempt_reaches_the_target_and_says_where_the_time_went():
    (found,) = attempt.attempts(QUICK, TASK, [0])
    assert found.reached
    assert not found.diverged
    assert found.accuracy >= TASK.target
    assert found.steps % QUICK.eval_every == 0
    assert found.steps == found.seen[-1][0]
    parts = found.staging_s + found.input_s + found.evaluate_s + found.step_s
    assert parts == pytest.approx(found.seconds)
    assert found.device_s == found.seconds


def test_the_same_seed_gives_the_same_curve_whatever_the_loader():
    curves = [
        [accuracy for _, _, accuracy in attempt.attempts(dataclasses.replace(QUICK, loader=loader), TASK, [3])[0].seen]
        for loader in ("staged", "naive")
    ]
    assert curves[0] == pytest.approx(curves[1], abs=0.011)  # rounding may turn an image or two


def test_an_attempt_is_one_replica_of_the_ensemble(file):
    from dltutorial.convergence import ensemble

    (found,) = attempt.attempts(QUICK, TASK, [7])
    parts = [x for split in ("train", "valid", "valid") for x in attempt.whole(file, split, TASK)]
    survey = Survey("lenses", 2, *parts)
    run = ensemble.train(
        survey, [ensemble.Replica(QUICK.learning_rate, 7)], QUICK.batch_size, found.steps,
        widths=TASK.widths, evaluate_every=QUICK.eval_every, device="cpu",
    )  # fmt: skip
    assert run.valid_accuracy_RE[0].tolist() == pytest.approx([a for *_, a in found.seen], abs=0.011)


def test_an_attempt_that_gives_up_has_not_reached_the_target():
    (found,) = attempt.attempts(dataclasses.replace(QUICK, learning_rate=1e-7), TASK, [0])
    assert not found.reached
    assert found.steps == QUICK.steps


def test_a_rate_without_measure_diverges_and_ends_early():
    (found,) = attempt.attempts(dataclasses.replace(QUICK, learning_rate=1e30, steps=2000), TASK, [0])
    assert found.diverged
    assert not found.reached
    assert found.steps < 2000


def test_ranks_share_a_batch_and_train_the_same():
    alone, together = (attempt.attempts(dataclasses.replace(QUICK, ranks=n), TASK, [1])[0] for n in (1, 2))
    assert together.ranks == 2
    assert together.device_s == 2 * together.seconds
    n = min(len(alone.seen), len(together.seen))
    assert [a for *_, a in alone.seen[:n]] == pytest.approx([a for *_, a in together.seen[:n]], abs=0.02)


def test_threads_are_as_before_after_an_attempt():
    before = torch.get_num_threads()
    attempt.attempts(QUICK, TASK, [0])
    assert torch.get_num_threads() == before


# MLPerf HPC's metrics


def of(seconds, reached=True):
    """What attempt.py tells of an attempt, as far as it is used."""
    return {"seconds": seconds, "reached": reached}


def test_time_to_train_leaves_out_the_shortest_and_the_longest():
    time_to_train_s = written("15", "seconds_of", "time_to_train_s")["time_to_train_s"]
    assert time_to_train_s([of(s) for s in (1, 9, 3, 2, 4)]) == 3
    assert time_to_train_s([*(of(1) for _ in range(4)), of(0.1, reached=False)]) == math.inf


# The leaderboard, as chapter 15 writes it


def chapter_15(task=TASK, preset="smoke"):
    """What a learner's notebook has: one that records, and one that reads all records back."""
    made = {"task": task, "chapter": types.SimpleNamespace(preset=types.SimpleNamespace(name=preset))}
    return written("15", "seconds_of", "note", "board", record=records.Writer("15", preset).write, **made)


@pytest.fixture
def _own_records(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "r.jsonl"))


@pytest.mark.usefixtures("_own_records")
def test_the_leaderboard_ranks_by_time_and_never_what_missed_the_target():
    chapter = chapter_15()
    chapter["note"]("slow", {}, [of(3), of(5), of(4)])
    chapter["note"]("lucky", {}, [of(0.1), of(9, reached=False)])
    chapter["note"]("fast", {}, [of(7)])
    chapter["note"]("fast", {"ranks": 2}, [of(1)], "300 J, estimated")  # again: the newest counts
    records.Writer("15", "smoke").write("something else", 1.0)
    assert chapter["board"]() == [
        ["1.", "fast", "1 s", "2 s", "1 of 1"],
        ["2.", "slow", "4 s", "4 s", "3 of 3"],
        ["–", "lucky", "not reached", "–", "1 of 2"],
    ]
    newest = next(r for r in reversed(list(records.read(paths.records_file()))) if r.get("recipe") == "fast")
    assert newest["energy"] == "300 J, estimated"


@pytest.mark.usefixtures("_own_records")
def test_the_board_of_this_machine_holds_its_own_task_and_preset_only():
    for task in (TASK, dataclasses.replace(TASK, seed=5), dataclasses.replace(TASK, target=0.8)):
        chapter_15(task)["note"]("quick", {}, [of(1)])
    (entry,) = chapter_15()["board"]()
    assert entry[1] == "quick"
    assert chapter_15(preset="laptop")["board"]() == []


# Energy and money


def zones(folder, microjoules):
    for name, kind in (("intel-rapl:0", "package-0"), ("intel-rapl:1", "package-1"), ("intel-rapl:0:0", "core")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "name").write_text(f"{kind}\n")
        (folder / name / "energy_uj").write_text(str(microjoules))
        (folder / name / "max_energy_range_uj").write_text("9999999")


def test_rapl_adds_the_packages_and_survives_a_counter_that_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy.machine, "device", lambda: "cpu")
    zones(tmp_path, 9_000_000)
    with energy.meter() as found:
        zones(tmp_path, 500_000)
    assert found.energy.joules == pytest.approx(2 * 1.5)
    assert found.energy.measured
    assert "measured (RAPL" in str(found.energy)


def test_energy_that_nothing_can_tell_is_not_available(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy.machine, "device", lambda: "cpu")
    with energy.meter() as found:
        pass
    assert found.energy.joules is None
    assert str(found.energy).startswith("not available")


def test_without_a_counter_energy_is_the_stated_power_times_the_measured_load(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    clocks = {"cpu": "10 W a core, assumed; 0.50 cores busy", "cuda": "10 W, assumed; load unknown, taken as full"}
    for device, how in clocks.items():
        monkeypatch.setattr(energy.machine, "device", lambda device=device: device)
        found = energy.estimated(10, "assumed", seconds=4.0, busy_s=2.0)
        assert str(found) == f"{20 if device == 'cpu' else 40} J, estimated ({how})"
    monkeypatch.setattr(energy.machine, "device", lambda: "cpu")
    busy_s = iter((1.0, 4.0))
    monkeypatch.setattr(energy, "_busy_s", lambda: next(busy_s))
    with energy.meter(10, "assumed") as found:
        pass
    assert (found.energy.joules, found.energy.measured) == (30.0, False)


def test_the_seconds_of_busy_cores_count_children_that_have_ended():
    before_s = energy._busy_s()
    subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.2: pass"], check=True)
    assert energy._busy_s() - before_s >= 0.19


@pytest.mark.parametrize(
    ("said", "joules"),
    [
        ("echo 900; echo 1200; echo; echo 300", 1200),  # the steps of a job run at the same time
        ("echo 0; echo 0", None),
        ("echo 18446744073709551614", None),  # Slurm's "no value"
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", None),
        (None, None),
    ],
)
def test_the_energy_of_a_job_is_what_sacct_kept(said, joules, tmp_path, monkeypatch):
    if said:
        (tmp_path / "sacct").write_text(f'#!/bin/sh\n[ "$3" = --jobs=77 ] || exit 2\n{said}\n')
        (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = energy.of_job("77")
    assert (found.joules, found.measured) == (joules, joules is not None)
    assert ("sacct, whole nodes of job 77" if joules else "not available") in str(found)


def test_readings_of_boards_are_averaged_and_added():
    found = energy.from_readings("0, 100.0\n1, 50.0\n0, 300.0\n1, 50.0\n0, [N/A]\n1", 2.0)
    assert found.joules == 2 * (200 + 50)
    assert energy.from_readings("0, [N/A]\n", 2.0).joules is None


def test_the_published_arithmetic_comes_out():
    published = {row["what"]: float(row["value"]) for row in plots.reference("gpt3_training")}
    prices = [row for row in plots.reference("prices") if row["instance"] == "NC6s v3"]
    assert {(row["gpu"], row["gpus"], row["date"]) for row in prices} == {("V100", "1", "2022-07-17")}
    usd_per_hour = {row["contract"]: float(row["usd_per_hour"]) for row in prices}
    hours = published["time on one V100"] * 365 * 24
    assert round(hours * usd_per_hour["reserved 3 years"]) == 3_045_116
    assert usd_per_hour["pay as you go"] == pytest.approx(3.06)
    assert published["work"] / published["rate supposed"] / 3600 == pytest.approx(hours, rel=0.01)
    assert round(published["energy"] * published["grid"] / 1e3) == published["emissions"]
