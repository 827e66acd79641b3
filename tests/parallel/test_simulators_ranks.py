"""The surrogate and the physics-informed network on two ranks are those of one, to rounding."""

import pytest
import simulators

from dltutorial.launch import launch
from dltutorial.science import cases, pinn, surrogate

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


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


@pytest.mark.parametrize("knobs", [{}, {"accumulate": 2}, {"precision": "bf16"}], ids=str)
def test_two_ranks_find_what_one_finds(data, tmp_path, knobs):
    together = launch(simulators.train_both, 2, data, tmp_path / "two", **knobs)
    alone = simulators.train_both(data, tmp_path / "one", **knobs)
    close = {"rel": 2e-2 if knobs.get("precision") else 1e-4}
    for name, one in alone.items():
        two = together[0][name]
        assert [loss for _, loss, _ in two] == pytest.approx([loss for _, loss, _ in one], **close)
        assert one[-1][2].keys() == two[-1][2].keys()
        assert two[-1][2] == pytest.approx(one[-1][2], **close)
