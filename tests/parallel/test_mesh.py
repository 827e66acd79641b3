"""Training on a mesh of ranks is training on one rank: the losses and weights are the same, and a rank holds less."""

import meshing
import pytest
import torch

from dltutorial.engine.forecasting import make_vit
from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
NOT_CLIPPED = {"clip_norm": 0.0}
KINDS = [
    {},
    {"shard": "optimizer"},
    {"shard": "gradients"},
    {"shard": "full"},
    {"tensor": 2},
    {"context": 2},
    {"pipeline": 2, "accumulate": 2},
]


@pytest.mark.ci
def test_losses_scores_and_weights_are_those_of_one_rank(data):
    """Clipping hides a constant factor of the gradients, so each kind trains without clipping and with it."""
    expected = launch(meshing.trained, 1, data, [NOT_CLIPPED, {}])[0]
    variants = [knobs | clipping for knobs in KINDS for clipping in (NOT_CLIPPED, {})]
    for rank, results in enumerate(launch(meshing.trained, 2, data, variants, timeout_s=300)):
        for number, (losses, weights) in enumerate(results):
            knobs = variants[number]
            expected_losses, expected_weights = expected[number % 2]
            for loss, expected_loss in zip(losses, expected_losses, strict=True):
                assert loss == pytest.approx(expected_loss, rel=1e-5), knobs
            if rank == 0:
                assert list(weights) == list(expected_weights)
            for name, weight in weights.items():
                message = f"{knobs} {name}"
                torch.testing.assert_close(weight, expected_weights[name], rtol=1e-4, atol=1e-6, msg=message)


@pytest.mark.parametrize(
    ("shard", "forward", "weights", "gradients", "averages"),
    [("optimizer", 1, 1, 1, 2), ("gradients", 1, 2, 2, 2), ("full", 2, 2, 2, 2)],
)
@pytest.mark.ci
def test_a_rank_holds_what_the_formulas_say(data, shard, forward, weights, gradients, averages):
    """The divisors are those of chapter 17. ``ZeroRedundancyOptimizer`` gives each rank whole tensors."""
    model = make_vit(meshing.MESH)
    blocks = sum(p.numel() for p in model.blocks.parameters())
    n_parameters = sum(p.numel() for p in model.parameters())
    largest = max(p.numel() for p in model.parameters())
    expected = {
        "forward": blocks / forward + n_parameters - blocks,
        "weights": n_parameters / weights,
        "gradients": n_parameters / gradients,
        "averages": 2 * n_parameters / averages,
    }
    tolerance = 2 * largest if shard == "optimizer" else 0
    ranks = launch(meshing.held, 2, data, {"shard": shard})
    for what, numbers in expected.items():
        assert sum(rank[what] for rank in ranks) == 2 * numbers, what
        for rank in ranks:
            assert abs(rank[what] - numbers) <= tolerance, what


# Stopped and resumed


def go(data, folder, n, knobs, end_at=None, resume=True):
    return launch(meshing.trained_on, n, data, folder, knobs, end_at=end_at, resume=resume, timeout_s=300)[0]


@pytest.mark.ci
def test_a_run_in_shards_goes_on_with_another_mesh_and_without_a_damaged_checkpoint(data, tmp_path):
    whole, _ = go(data, tmp_path / "whole", 1, {}, resume=False)
    folder, full = tmp_path / "r", {"shard": "full", "checkpoint_every": 2}
    losses = {step: loss for step, loss, _ in go(data, folder, 2, full, 5, resume=False)[0]}
    newest = sorted((folder / "checkpoints").glob("step-00000006-*.shard"))
    newest[0].write_bytes(b"")
    for n, knobs, end_at in [(2, full, 2), (1, {}, 2), (2, {"tensor": 2}, None)]:
        records, _ = go(data, folder, n, knobs, end_at)
        losses |= {step: loss for step, loss, _ in records}
    assert list(losses.values()) == pytest.approx([loss for _, loss, _ in whole], rel=1e-4)
    expected = torch.load(tmp_path / "whole" / "weights.pt", weights_only=True)
    weights = torch.load(folder / "weights.pt", weights_only=True)
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.ci
def test_a_full_disk_of_one_rank_is_one_line_of_that_rank_and_nobody_waits(data, tmp_path):
    with pytest.raises(RankFailed, match="make room") as failed:
        launch(meshing.trained_without_room, 2, data, tmp_path / "r", {"shard": "full", "checkpoint_every": 2})
    assert (failed.value.rank, failed.value.kind) == (1, "CheckpointError")
    assert not list(tmp_path.rglob("step-*.pt"))
