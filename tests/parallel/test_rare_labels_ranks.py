"""Climate and land cover on two ranks: the losses and scores of one."""

import pytest
import rare_labels
import torch

from dltutorial.launch import launch

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(on one rank, on two)."""
    place = tmp_path_factory.mktemp("rare")
    folders = {
        "climate": str(rare_labels.write_climate(place / "climate")),
        "landcover": str(rare_labels.write_landcover(place / "landcover")),
    }
    before, machine = torch.get_num_threads(), rare_labels.machine.use_cores
    alone = rare_labels.train(folders, place / "one")
    rare_labels.machine.use_cores = machine
    torch.set_num_threads(before)
    return alone, launch(rare_labels.train, 2, folders, str(place / "two"))


@pytest.mark.parametrize("case", ["climate", "landcover"])
@pytest.mark.parametrize("variant", range(len(rare_labels.VARIANTS)))
def test_two_ranks_have_the_losses_and_scores_of_one(runs, case, variant):
    alone, (first, second) = runs
    losses, scores = alone[case, variant]
    assert first[case, variant] == second[case, variant]
    assert first[case, variant][0] == pytest.approx(losses, rel=1e-5)
    assert losses[0] != losses[-1]
    assert first[case, variant][1] == pytest.approx(scores, rel=1e-3, abs=1e-3)


def test_parts_that_take_turns_have_the_losses_of_the_whole(runs):
    alone, _ = runs
    for case in ("climate", "landcover"):
        assert alone[case, 1][0] == pytest.approx(alone[case, 0][0], rel=1e-5)
