"""Many replicas under LARS, LARC and LAMB at once are what each optimizer makes of one network alone."""

import clouds
import pytest
import torch
from torch.nn import functional as F

from dltutorial.convergence import ensemble, networks
from dltutorial.convergence.ensemble import WIDTHS, Replica
from dltutorial.convergence.stacked_optimizers import for_replicas
from dltutorial.data.surveys import Survey
from dltutorial.optim.lamb import LAMB
from dltutorial.optim.lars import LARC, LARS
from dltutorial.optim.layerwise import without_adaptation

BATCH, STEPS = 16, 30
CASES = {
    "LARS": (LARS, {"trust_coefficient": 0.1, "weight_decay": 0.1}, 1.0),
    "LARC": (LARC, {"weight_decay": 0.1}, 0.05),
    "LAMB": (LAMB, {"weight_decay": 0.1}, 0.03),
}


@pytest.fixture(scope="module")
def survey():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 10, generator=generator)
    y = (x @ torch.randn(10, 3, generator=generator)).argmax(1)
    parts = [part for pair in zip(x.split([200, 100, 100]), y.split([200, 100, 100]), strict=True) for part in pair]
    return Survey("planes", 3, *parts)


def factor(step):
    return min(1.0, (step + 1) / 5)


def alone(survey, replica, kind, options):
    model = networks.network((survey.n_features, *WIDTHS, survey.n_classes), replica.seed)
    optimizer = kind(without_adaptation(model, **options), lr=replica.learning_rate, **options)
    for step, chosen in enumerate(clouds.batches(replica.seed, len(survey), BATCH, STEPS)):
        for group in optimizer.param_groups:
            group["lr"] = replica.learning_rate * factor(step)
        optimizer.zero_grad()
        F.cross_entropy(model(survey.x_train[chosen]), survey.y_train[chosen]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", CASES)
def test_a_replica_is_what_the_optimizer_makes_of_it_alone(survey, name):
    kind, options, rate = CASES[name]
    replicas = [Replica(rate * share, seed, factor) for share in (0.3, 1.0) for seed in (0, 5)]
    run = ensemble.train(
        survey,
        replicas,
        BATCH,
        STEPS,
        optimizer=for_replicas(kind, **options),
        device="cpu",
    )
    for number, replica in enumerate(replicas):
        start = networks.network((survey.n_features, *WIDTHS, survey.n_classes), replica.seed)
        model = alone(survey, replica, kind, options)
        for ours, theirs, first in zip(*(m.parameters() for m in (run.replica(number), model, start)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            assert (theirs - first).abs().max() > 1e-3, "it hardly moved"


@pytest.mark.parametrize("name", ["LARS", "LAMB"])  # what LARC clips does not diverge
def test_one_that_diverges_leaves_and_the_others_go_on_as_before(survey, name):
    kind, options, rate = CASES[name]
    healthy, wild = Replica(rate, 3), Replica(1e30, 0)

    def train(*replicas):
        how = {"optimizer": for_replicas(kind, **options), "evaluate_every": 5, "device": "cpu"}
        return ensemble.train(survey, replicas, BATCH, STEPS, **how)

    run = train(wild, healthy)
    assert run.diverged_R.tolist() == [True, False]
    torch.testing.assert_close(run.train_loss_RE[1], train(healthy).train_loss_RE[0])
