import dataclasses

import pytest
import torch

from dltutorial.convergence import energy
from dltutorial.course.checks import attempts as attempt
from dltutorial.course.checks.attempts import SolutionRecipe, SolutionTask

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
    one_by_one, batched, staged = (
        attempt.make_loader(name, file, TASK)(chosen) for name in ("one by one", "batched", "staged")
    )
    torch.testing.assert_close(one_by_one[0], staged[0])
    torch.testing.assert_close(batched[0], staged[0])
    assert one_by_one[1].tolist() == batched[1].tolist() == staged[1].tolist()


def test_an_attempt_reaches_the_target_and_says_where_the_time_went():
    (result,) = attempt.attempts(QUICK, TASK, [0])
    assert result.reached
    assert result.accuracy >= TASK.target
    assert result.steps == result.validations[-1][0]
    assert result.steps % QUICK.eval_every == 0
    parts = result.staging_s + result.input_s + result.evaluate_s + result.step_s
    assert parts == pytest.approx(result.seconds)
    assert result.device_s == result.seconds


def test_two_ranks_share_a_batch_and_train_the_same():
    alone, together = (attempt.attempts(dataclasses.replace(QUICK, ranks=n), TASK, [1])[0] for n in (1, 2))
    assert together.device_s == 2 * together.seconds
    n = min(len(alone.validations), len(together.validations))
    accuracy_alone, accuracy_together = (
        [accuracy for *_, accuracy in one.validations[:n]] for one in (alone, together)
    )
    assert accuracy_alone == pytest.approx(accuracy_together, abs=0.02)


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


def test_readings_of_gpus_are_averaged_and_added():
    assert energy.from_readings("0, 100.0\n1, 50.0\n0, 300.0\n1, 50.0\n0, [N/A]\n1", 2.0).joules == 2 * (200 + 50)
