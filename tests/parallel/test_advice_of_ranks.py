"""What goes wrong between real ranks leads to one sentence of what to do."""

import datetime
import os
import signal
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from dltutorial import advice
from dltutorial.launch import RankFailed, RanksHang, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


def sums_of_two_sizes():
    dist.all_reduce(torch.ones(1000 + 500_000 * dist.get_rank()))


def products_that_do_not_fit():
    return torch.ones(2, 3) @ torch.ones(4, 5)


def models_of_two_sizes():
    nn.parallel.DistributedDataParallel(nn.Linear(3, 4 + dist.get_rank()))


def killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def too_late():
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3), group=group)
    time.sleep(30)


class Forgets(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.forgotten = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def forgotten_parameters():
    model = nn.parallel.DistributedDataParallel(Forgets())
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()


@pytest.fixture(autouse=True)
def _send_whole(request):
    """Functions of this file go to the ranks by value."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (sums_of_two_sizes, "rank-aborted"),
        (products_that_do_not_fit, "shapes"),
        (models_of_two_sizes, "ranks-differ"),
        (killed, "rank-killed"),
        (too_late, "collective-timeout"),
        (forgotten_parameters, "unused-parameters"),
    ],
)
def test_a_rank_that_fails_leads_to_its_advice(function, name):
    with pytest.raises(RankFailed) as caught:
        launch(function, 2, timeout_s=60)
    found = advice.of(caught.value)
    assert found, str(caught.value)
    assert found.name == name
    assert advice.of_words("RankFailed", str(caught.value)) == found
    status, said = advice.exit_status(caught.value)
    assert (status, said) == (2, f"{caught.value}\n\n{found.do}")


def test_ranks_that_hang_say_themselves_what_to_do():
    with pytest.raises(RanksHang, match="same collectives in the same order") as caught:
        launch(time.sleep, 2, 60, timeout_s=1)
    assert advice.of(caught.value) is None
