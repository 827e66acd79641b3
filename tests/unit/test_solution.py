import dataclasses
import math
import types

import numpy as np
import pytest
import torch
from chapters import written

from dltutorial import paths
from dltutorial.convergence import attempt, curves, energy, images, predict
from dltutorial.convergence.predict import BatchCost, MeasuredMachine, time_to_solution
from dltutorial.convergence.recipe import SolutionRecipe, SolutionTask
from dltutorial.errors import CourseError
from dltutorial.record import plots, records
from dltutorial.train.step import learning_rate

TASK = SolutionTask(target=0.7, train=600, valid=200, widths=(16,))
QUICK = SolutionRecipe(loader="staged", batch_size=100, learning_rate=2**-3, steps=60, eval_every=5)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLTUTORIAL_DATA", str(tmp_path_factory.mktemp("data")))
        yield images.prepare(TASK)


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


def test_weights_are_counted_as_the_network_has_them():
    assert TASK.n_weights == sum(p.numel() for p in attempt.build(TASK, 0).parameters())


# Images


def test_all_loaders_give_the_same_images(file):
    chosen = torch.tensor([5, 3, 599, 0])
    naive, lean, staged = (images.make_loader(name, file, TASK)(chosen) for name in ("naive", "lean", "staged"))
    torch.testing.assert_close(naive[0], staged[0])
    torch.testing.assert_close(lean[0], staged[0])
    assert naive[1].tolist() == lean[1].tolist() == staged[1].tolist()


def test_the_mean_training_image_is_subtracted(file):
    x_NF, _ = images.whole(file, "train", TASK)
    assert x_NF.shape == (600, 256)
    torch.testing.assert_close(x_NF.mean(0), torch.zeros(256), atol=1e-5, rtol=0)


def test_images_are_simulated_once(file, monkeypatch):
    monkeypatch.setattr(images.lenses, "simulate", lambda *args, **kwargs: pytest.fail("simulated again"))
    assert images.prepare(TASK) == file


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
    run = ensemble.train(
        images.survey(file, TASK), [ensemble.Replica(QUICK.learning_rate, 7)], QUICK.batch_size, found.steps,
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


# Predictions

CURVE = curves.fit([32, 128, 512], np.array([[850.0], [250.0], [100.0]]))  # S_min 50, B_crit 512


@pytest.fixture
def known():
    return MeasuredMachine(
        SolutionTask(), {"naive": BatchCost(1e-4, 3e-5), "lean": BatchCost(0, 1e-6), "staged": BatchCost(0, 0)},
        {"fp32": BatchCost(4e-4, 1e-6)}, {"naive": 0.0, "lean": 0.0, "staged": 0.1}, 1e-3, 5e-4, 1e9,
        CURVE, {32: 0.1, 128: 0.2, 512: 0.4},
    )  # fmt: skip


def test_a_prediction_is_the_sum_of_its_parts(known):
    found = time_to_solution(SolutionRecipe(loader="staged", batch_size=512), known)
    wanted = {"staging": 0.1, "input": 0, "computing": 100 * (4e-4 + 512e-6), "communication": 0, "looking": 0.01}
    assert found == pytest.approx(wanted)


def test_ranks_divide_the_images_and_pay_for_messages(known):
    one, two = (time_to_solution(SolutionRecipe(batch_size=512, ranks=n), known) for n in (1, 2))
    assert max(one, key=one.get) == "input"
    assert two["input"] == pytest.approx(one["input"] * (1e-4 + 256 * 3e-5) / (1e-4 + 512 * 3e-5))
    assert two["communication"] == pytest.approx(100 * (2 * 5e-4 + 4 * SolutionTask().n_weights / 1e9))


def test_steps_are_counted_until_the_next_look_or_until_a_recipe_gives_up(known):
    for every, most, steps in ((1, 1500, 251), (10, 1500, 260), (100, 1500, 300), (10, 50, 50)):
        recipe = SolutionRecipe(batch_size=128, eval_every=every, steps=most)
        found = time_to_solution(recipe, known)["computing"] / known.update_s["fp32"].seconds(128)
        assert abs(found - steps) <= 1


def test_what_was_not_measured_is_not_predicted(known):
    for knobs, what in (({"precision": "bf16"}, "bf16 with sgd"), ({"optimizer": "adamw"}, "fp32 with adamw")):
        with pytest.raises(CourseError, match=f"{what} was not measured"):
            time_to_solution(SolutionRecipe(**knobs), known)
    with pytest.raises(CourseError, match="measure with ranks=2"):
        time_to_solution(SolutionRecipe(ranks=2), dataclasses.replace(known, message_s=0.0))


def test_a_line_is_found_again():
    line = BatchCost.through({b: 2e-4 + b * 3e-6 for b in (32, 128, 512)})
    assert (line.fixed_s, line.image_s) == pytest.approx((2e-4, 3e-6))
    assert BatchCost.through({100: 1.0, 1000: 20.0}).fixed_s == 0


def test_a_machine_is_measured_and_predicts():
    rates = {16: (2**-4,), 50: (2**-3,), 200: (2**-2,)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "RATES", rates)
        here = predict.measure(TASK, repeats=1, seeds=[100, 101, 102])
    assert here.curve.s_min > 0
    assert here.rate(100) == pytest.approx(2**-2.5)
    assert 0 < sum(time_to_solution(QUICK, here).values()) < 60


def test_a_target_that_no_rate_reaches_is_told(file, monkeypatch):
    monkeypatch.setattr(predict, "RATES", {200: (1e-6,)})
    with pytest.raises(CourseError, match=r"did not reach 99\.9%"):
        predict.learn(dataclasses.replace(TASK, target=0.999), file, seeds=[0])


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


def test_rapl_adds_the_packages_and_survives_a_counter_that_starts_again(tmp_path):
    zones(tmp_path, 9_000_000)
    with energy.meter("cpu", tmp_path) as found:
        zones(tmp_path, 500_000)
    assert found.energy.joules == pytest.approx(2 * 1.5)
    assert found.energy.measured
    assert "measured (RAPL" in str(found.energy)


def test_energy_that_nothing_can_tell_is_not_available(tmp_path):
    with energy.meter("cpu", tmp_path) as found:
        pass
    assert found.energy.joules is None
    assert str(found.energy).startswith("not available")


def test_readings_of_boards_are_averaged_and_added():
    found = energy.from_readings("0, 100.0\n1, 50.0\n0, 300.0\n1, 50.0\n0, [N/A]\n1", 2.0)
    assert found.joules == 2 * (200 + 50)
    assert energy.from_readings("0, [N/A]\n", 2.0).joules is None


def test_a_stated_power_is_that_of_the_very_device():
    assert energy.stated_watt("NVIDIA A100-SXM4-40GB")[0] == 400
    assert energy.stated_watt("NVIDIA H200")[0] == 700
    assert energy.stated_watt("NVIDIA A100-PCIE-40GB") is None
    assert energy.stated_watt("AMD EPYC") is None


def test_the_published_arithmetic_comes_out():
    published = {row["what"]: float(row["value"]) for row in plots.reference("gpt3_training")}
    prices = [row for row in plots.reference("prices") if row["instance"] == "NC6s v3"]
    assert {(row["gpu"], row["gpus"], row["date"]) for row in prices} == {("V100", "1", "2022-07-17")}
    usd_per_hour = {row["contract"]: float(row["usd_per_hour"]) for row in prices}
    hours = published["time on one V100"] * 365 * 24
    assert round(hours * usd_per_hour["reserved 3 years"]) == 3_045_116
    assert usd_per_hour["pay as you go"] == pytest.approx(3.06)
    assert published["work"] / published["rate supposed"] / 3600 == pytest.approx(hours, rel=0.01)
