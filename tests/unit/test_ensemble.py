import dataclasses
import functools

import clouds
import pytest
import torch
from torch.nn import functional as F

from dltutorial.convergence import ensemble, networks
from dltutorial.convergence.ensemble import WIDTHS, Order, Replica


@pytest.fixture(scope="module")
def survey():
    return clouds.survey()


def train(survey, replicas, batch_size=16, steps=40, **more):
    return ensemble.train(survey, replicas, batch_size, steps, device="cpu", **more)


def alone(survey, replica, make, batch_size=16, steps=40, schedule=None):
    """The same training with plain torch: a module, an optimizer of torch.optim, one batch after another."""
    model = networks.network((survey.n_features, *WIDTHS, survey.n_classes), replica.seed)
    optimizer, losses = make(model.parameters(), lr=replica.learning_rate), []
    for step, chosen in enumerate(clouds.batches(replica.seed, len(survey), batch_size, steps)):
        for group in optimizer.param_groups:
            group["lr"] = replica.learning_rate * (schedule(step) if schedule else 1)
        loss = F.cross_entropy(model(survey.x_train[chosen]), survey.y_train[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


REPLICAS = [Replica(rate, seed) for rate in (0.003, 0.01, 0.03) for seed in (0, 5)]
OPTIMIZERS = {
    "sgd": ({"optimizer": "sgd"}, functools.partial(torch.optim.SGD, momentum=0.9)),
    "adam": ({"optimizer": "adam"}, torch.optim.Adam),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_replica_trains_as_it_does_alone_in_plain_torch(survey, name):
    options, make = OPTIMIZERS[name]

    def schedule(step):
        return min(1.0, (step + 1) / 10)

    replicas = [dataclasses.replace(replica, schedule=schedule) for replica in REPLICAS]
    run = train(survey, replicas, evaluate_every=1, **options)
    for number, replica in enumerate(replicas):
        model, losses = alone(survey, replica, make, schedule=schedule)
        torch.testing.assert_close(run.train_loss_RE[number], torch.tensor(losses), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(run.replica(number).parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        accuracy = (model(survey.x_valid).argmax(1) == survey.y_valid).float().mean()
        assert run.valid_accuracy_RE[number, -1] == pytest.approx(accuracy.item(), abs=0.011)


def test_the_order_depends_on_the_seed_alone():
    order = Order([3, 7, 3], n_images=10)
    indices = torch.cat([order.next(4) for _ in range(5)], 1)
    assert torch.equal(indices[0], indices[2]) and not torch.equal(indices[0], indices[1])
    assert sorted(indices[0, :10].tolist()) == sorted(indices[0, 10:].tolist()) == list(range(10))
    assert torch.equal(indices[0], clouds.batches(3, 10, batch_size=10, steps=2).flatten())


def test_a_diverged_replica_is_marked_and_the_others_continue(survey):
    healthy, wild = Replica(0.01, 0), Replica(1e30, 0)
    run = train(survey, [wild, healthy, wild], evaluate_every=5)
    assert run.diverged_R.tolist() == [True, False, True]
    assert run.valid_accuracy_RE[0].isnan().all() and run.train_loss_RE[2].isnan().all()
    torch.testing.assert_close(run.train_loss_RE[1], train(survey, [healthy], evaluate_every=5).train_loss_RE[0])
    assert run.steps_to(0.0).isnan().tolist() == [True, False, True]
    weights = torch.cat([p.flatten() for p in run.replica(0).parameters()])
    assert weights.abs().max() > 1e20 or not weights.isfinite().all()  # as they were, not set to nought
    assert run.accuracy(survey.x_test, survey.y_test).isnan().tolist() == [True, False, True]


def test_steps_to_is_the_first_evaluation_with_the_target_and_nan_if_none(survey):
    run = train(survey, REPLICAS, steps=60, evaluate_every=1)
    reached = run.steps_to(0.895)
    for number in range(len(REPLICAS)):
        scores = run.valid_accuracy_RE[number].tolist()
        there = [step for step, score in zip(run.steps.tolist(), scores, strict=True) if score >= 0.895]
        assert reached[number] == there[0] if there else reached[number].isnan()
    assert run.steps_to(1.01).isnan().all()


def test_a_replica_at_the_target_leaves_without_changing_steps_to(survey):
    whole = train(survey, REPLICAS, steps=100, evaluate_every=2)
    short = train(survey, REPLICAS, steps=100, evaluate_every=2, until=0.9)
    torch.testing.assert_close(whole.steps_to(0.9), short.steps_to(0.9), equal_nan=True)
    assert short.valid_accuracy_RE.isnan().any()


def test_a_function_as_optimizer_gets_the_layers_of_all_replicas(survey):
    def sign_descent(layer, gradient, state, rate_R11):
        assert rate_R11.shape == (len(layer), 1, 1)
        layer.sub_(rate_R11 * gradient.sign())

    run = train(survey, REPLICAS[:2], optimizer=sign_descent)
    assert (run.train_loss_RE[:, -1] < 0.6 * run.train_loss_RE[:, 0]).all()


def test_weights_are_copied_after_the_steps_of_keep_steps(survey):
    replicas = [Replica(1e30, 0), *REPLICAS]
    run = train(survey, replicas, keep_steps=(0, 10, 40), evaluate_every=15)
    assert run.steps.tolist() == [10, 15, 30, 40]
    early = train(survey, REPLICAS, steps=10)
    fresh = networks.network((survey.n_features, *WIDTHS, survey.n_classes), REPLICAS[0].seed)
    for copied, other in [
        (run.after(0, 1), fresh),
        (run.after(10, 2), early.replica(1)),
        (run.after(40, 3), run.replica(3)),
    ]:
        for ours, theirs in zip(copied.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
