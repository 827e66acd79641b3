"""What a schedule, of the rate or of the batch, asks of the ensemble trainer."""

import pytest
import torch
from torch.nn import functional

from dltutorial.convergence import ensemble, networks
from dltutorial.convergence.ensemble import Order
from dltutorial.data import surveys


@pytest.fixture(scope="module")
def survey():
    return surveys.digits(seed=0)


def alone(survey, seed, updates, rate):
    """One replica by torch's own optimizer, with the batch size and the factor of each update."""
    net = networks.network((survey.n_features, 16, survey.n_classes), seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    order = Order([seed], len(survey))
    for size, factor in updates:
        chosen = order.next(size)[0]
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        optimizer.zero_grad()
        functional.cross_entropy(net(survey.x_train[chosen]), survey.y_train[chosen]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_a_batch_that_grows_trains_each_replica_as_if_alone(survey):
    updates = [(16, 1.0)] * 6 + [(64, 1.0)] * 2 + [(64, 0.25)] * 2
    run = ensemble.train(
        survey,
        [ensemble.Replica(0.1, seed) for seed in (3, 4)],
        lambda step: updates[step][0],
        len(updates),
        widths=(16,),
        schedule=lambda step: updates[step][1],
        device="cpu",
    )
    for number, seed in enumerate((3, 4)):
        weights = torch.cat([p.detach().flatten() for p in run.replica(number).parameters()])
        assert torch.allclose(weights, alone(survey, seed, updates, 0.1), atol=1e-5)
