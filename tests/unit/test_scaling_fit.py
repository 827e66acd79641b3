"""The fit recovers the terms of made-up steps, and predicts the largest step of published series."""

import numpy as np
import pytest

from dltutorial.record import plots
from dltutorial.scaling import fit
from dltutorial.scaling.fit import TimedStep


def planted(ranks, samples=8, near=0.1, far=0.2, queue=0.0, per_node=4):
    """A step of 0.1 s of work for 8 samples."""
    inside, nodes = min(ranks, per_node), -(-ranks // per_node)
    share = samples / 8 + near * (inside - 1) / inside + far * (nodes - 1) / nodes + queue * (ranks - 1)
    return TimedStep(ranks, samples, 0.1 * share)


def series():
    """Published: name, ranks on a node → timed steps, by size."""
    steps_of = {}
    for row in plots.reference("scaling_series"):
        gpus, samples = int(row["gpus"]), int(row["samples_per_gpu"])
        step = TimedStep(gpus, samples, gpus * samples / float(row["samples_per_s"]))
        steps_of.setdefault((row["series"], int(row["gpus_per_node"])), []).append(step)
    return steps_of


@pytest.mark.parametrize("queue", [0.0, 0.01])
def test_a_made_up_step_is_predicted_within_its_interval(queue):
    fitted = fit.fit([planted(p, queue=queue) for p in (1, 2, 4, 8, 16, 32)], 4)
    for ranks in (64, 128):
        low, middle, high = fitted.step_s(ranks)
        assert low < planted(ranks, queue=queue).step_s < high
        assert middle == pytest.approx(planted(ranks, queue=queue).step_s, rel=0.1)


def test_the_terms_near_and_far_are_distinguished():
    near, far = (
        fit.fit([planted(p, near=a, far=b) for p in (1, 2, 4, 8, 16)], 4).terms_DK.mean(0)
        for a, b in ((0.3, 0), (0, 0.3))
    )
    at_near, at_far = fit.TERMS.index("near"), fit.TERMS.index("far")
    assert near[at_near] > 3 * near[at_far]
    assert far[at_far] > 3 * far[at_near]


def test_weak_and_strong_steps_are_fitted_together():
    steps = [planted(p, n) for p, n in ((1, 16), (2, 8), (4, 4), (1, 8), (2, 16), (4, 8))]
    low, _, high = fit.fit(steps, 4).step_s(4, 32)
    assert low < planted(4, 32).step_s < high
    assert fit.fit(steps, 4).first == planted(1, 8)


def test_steps_that_scatter_widen_the_interval_until_it_holds_them():
    scatter = (1.3, 0.8, 1.25, 0.75, 1.2, 0.85)
    steps = [TimedStep(p, 8, f * planted(p).step_s) for p, f in zip((1, 1, 2, 2, 4, 4), scatter, strict=True)]
    noisy, exact = fit.fit(steps, 4), fit.fit([planted(p) for p in (1, 1, 2, 2, 4, 4)], 4)
    assert noisy.noise > 3 * exact.noise
    for fitted in (noisy, exact):
        low, _, high = fitted.step_s(4)
        assert low < planted(4).step_s < high
    assert np.divide(*noisy.step_s(8)[::2]) < np.divide(*exact.step_s(8)[::2])


def test_held_out_sizes_are_predicted_better_than_by_the_last_efficiency_on_average():
    """And no better in the typical series: chapter 11 says both."""
    errors = []
    for (_, per_node), (*rest, last) in series().items():
        _, middle, _ = fit.fit(rest, per_node).step_s(last.ranks)
        efficiencies = rest[0].step_s / np.array([middle, rest[-1].step_s, last.step_s])
        errors.append(abs(efficiencies[:2] - efficiencies[2]))
    (fitted, naive), (fitted_median, naive_median) = np.mean(errors, 0), np.median(errors, 0)
    assert fitted < 0.75 * naive
    assert fitted_median > 0.8 * naive_median


def test_a_file_of_steps_becomes_a_table(tmp_path):
    file = tmp_path / "steps.csv"
    rows = "".join(f"{p},{n},{s}\n" for p, n, s in (planted(p) for p in (1, 2, 4)))
    file.write_text("ranks,samples,step_s\n" + rows)
    lines = str(fit.table(fit.read(file), ranks_per_node=4)).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "4", "8", "16"]
    assert [line.split()[2] for line in lines[2:]] == ["100", "105", "107.5", "–", "–"]
