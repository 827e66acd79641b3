import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dltutorial.course.checks.narrow import NarrowMLP
from dltutorial.course.checks.rehearsal import Tape, Watch
from dltutorial.errors import CourseError

SHAPE = (3, 4, 4)
MODELS = {
    "narrow": lambda: NarrowMLP(SHAPE, dim=8, depth=3),
    "convolutions, batch norm": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 3, 1)
    ),
    "dropout": lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout(0.3), nn.Tanh(), nn.Conv2d(8, 3, 1)),
    "attention": lambda: nn.Sequential(
        nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Unflatten(2, (4, 4))
    ),
}


class Lab:
    """A model, its optimizer with the rate in a tensor, and one training step."""

    def __init__(self, make=MODELS["narrow"], precision=None):
        torch.manual_seed(0)
        self.model, self.precision = make(), precision
        self.rate = torch.tensor(1e-2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, fused=True, capturable=True)
        self.batches = [(x, x.roll(1, -1)) for x in torch.randn(12, 8, *SHAPE)]

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            loss = F.mse_loss(self.model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def warm_up(self, n=3):
        torch.manual_seed(1)
        return [self.step(x, y) for x, y in self.batches[:n]]

    def captured(self):
        """Warm up, then a tape, its buffers and its loss."""
        self.warm_up()
        x, y = (values.clone() for values in self.batches[3])
        tape = Tape()
        with tape.capture():
            loss = self.step(x, y)
        return tape, x, y, loss

    def state(self):
        return [value.clone() for value in self.model.state_dict().values()]


def replay(lab, factors):
    """Losses of the batches after the warm-up, each with its own learning rate."""
    tape, x, y, loss = lab.captured()
    losses = []
    for batch, factor in zip(lab.batches[3:], factors, strict=True):
        lab.rate.fill_(1e-2 * factor)
        x.copy_(batch[0])
        y.copy_(batch[1])
        tape.replay()
        losses.append(loss.clone())
    return losses


def eager(lab, factors):
    lab.warm_up()
    losses = []
    for batch, factor in zip(lab.batches[3:], factors, strict=True):
        lab.rate.fill_(1e-2 * factor)
        losses.append(lab.step(*batch))
    return losses


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_replay_equals_eager_steps_to_the_bit(make, precision):
    expected, got = Lab(make, precision), Lab(make, precision)
    factors = [1 - n / 9 for n in range(9)]
    assert same(eager(expected, factors), replay(got, factors))
    assert same(expected.state(), got.state())


def test_capture_computes_nothing():
    lab = Lab(MODELS["dropout"])
    lab.warm_up()
    before, random_state = lab.state(), torch.get_rng_state()
    tape = Tape()
    with tape.capture():
        loss = lab.step(*lab.batches[0])
    assert loss.isnan()
    assert same(before, lab.state())
    assert torch.equal(random_state, torch.get_rng_state())


def test_a_replay_reads_the_buffers_of_the_capture_whatever_their_names_mean_now():
    tape, x, _, loss = Lab().captured()
    expected = Lab()
    expected.warm_up()
    x = torch.zeros_like(x)  # another tensor under the same name: the tape knows nothing of it
    assert not x.any()
    tape.replay()
    assert torch.equal(loss, expected.step(*expected.batches[3]))


def test_the_loss_is_overwritten_by_the_next_replay():
    tape, _, _, loss = Lab().captured()
    tape.replay()
    kept, seen = loss, loss.item()
    tape.replay()
    assert kept.item() != seen


def test_without_warm_up_every_replay_starts_the_averages_anew():
    """AdamW makes its averages in its first step; recorded, it makes them again and again."""
    lab = Lab()
    tape = Tape()
    with tape.capture():
        lab.step(*lab.batches[0])
    tape.replay()
    tape.replay()
    assert {state["step"].item() for state in lab.optimizer.state.values()} == {1.0}


def test_a_capture_that_looks_at_a_value_leaves_all_as_it_was_and_nothing_to_replay():
    lab, tape = Lab(), Tape()
    lab.warm_up()
    before = lab.state()
    with pytest.raises(CourseError, match="looks at a value"), tape.capture():
        lab.step(*lab.batches[0]).item()
    assert same(before, lab.state())
    with pytest.raises(CourseError, match="tape is empty"):
        tape.replay()


def test_what_python_decides_is_decided_once():
    total, tape, calls = torch.zeros(()), Tape(), []
    with tape.capture():
        calls.append("a print would come here")
        total += 1 if random.Random(0).random() > 2 else 10  # a branch
    for _ in range(3):
        tape.replay()
    assert total.item() == 30
    assert len(calls) == 1


def test_a_python_number_is_frozen_and_a_tensor_is_not():
    number, tensor, frozen, live, tape = 1.0, torch.tensor(1.0), torch.zeros(()), torch.zeros(()), Tape()
    with tape.capture():
        frozen += number
        live += tensor
    number = 5.0
    tensor.fill_(5.0)
    tape.replay()
    assert (frozen.item(), live.item(), number) == (1.0, 5.0, 5.0)


def test_views_are_no_operations_and_arguments_returned_are_not_spoiled():
    x, tape = torch.ones(2, 3), Tape()
    with tape.capture():
        y = torch.ops.aten._unsafe_view(x.t().unsqueeze(0), [3, 2]) * 2
    assert torch.equal(x, torch.ones(2, 3))
    tape.replay()
    assert torch.equal(y, 2 * torch.ones(3, 2))
    assert len(tape) == 2


def test_a_tape_can_be_captured_again():
    x, tape = torch.zeros(()), Tape()
    for step in (1, 2):
        with tape.capture():
            x += step
    tape.replay()
    assert (x.item(), len(tape)) == (2.0, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the real names stay")
def test_stand_ins_know_where_a_step_runs_and_leave_torch_as_it_was():
    names = ("graph", "synchronize", "Stream", "CUDAGraph", "stream", "current_stream", "default_stream")
    before, seen, x = [getattr(torch.cuda, name) for name in names], [], torch.zeros(())
    with Watch() as watch:
        seen.append((watch.where, watch.in_order))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            seen.append((watch.where, watch.in_order))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=torch.cuda.CUDAGraph().pool()):
            seen.append((watch.where, watch.in_order))
            x += 1
        assert x.item() == 0
        graph.replay()
        assert (x.item(), watch.where, watch.nested) == (1, "outside", False)
        assert (watch.n_captures, watch.n_replays) == (1, 1)
        with torch.cuda.stream(side), torch.cuda.graph(graph):
            x += 1
        assert watch.nested
    assert seen == [("outside", False), ("warm-up", True), ("capture", True)]
    assert [getattr(torch.cuda, name) for name in names] == before
