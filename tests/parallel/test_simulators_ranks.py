"""The surrogate and the physics-informed network on two ranks are those of one, to rounding."""

import pytest
import simulators

from dltutorial.launch import launch
from dltutorial.science import cases, pinn, surrogate

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore:.*ranks share")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, case, plan in (
        ("surrogate", surrogate, cases.Simulated(40, 11)),
        ("pinn", pinn, cases.Simulated(40, 11, kind="watched")),
    ):
        (folder / name).mkdir()
        case._make(plan, folder / name)
    return folder


def test_two_ranks_have_the_losses_of_one(data, tmp_path):
    together = launch(simulators.train_both, 2, data, tmp_path / "two")
    alone = simulators.train_both(data, tmp_path / "one")
    close = {"rel": 1e-4}
    for name, one in alone.items():
        two = together[0][name]
        assert [loss for _, loss, _ in two] == pytest.approx([loss for _, loss, _ in one], **close)
        assert one[-1][2].keys() == two[-1][2].keys()
        assert two[-1][2] == pytest.approx(one[-1][2], **close)
