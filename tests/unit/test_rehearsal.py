import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dltutorial.course.checks.rehearsal import Tape, Watch
from dltutorial.errors import CourseError

SHAPE = (3, 4, 4)
MODELS = {
    "dropout": lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout(0.3), nn.Tanh(), nn.Conv2d(8, 3, 1)),
    "attention": lambda: nn.Sequential(
        nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Unflatten(2, (4, 4))
    ),
}


class Training:
    """A model, its optimizer with the learning rate in a tensor, and one training step."""

    def __init__(self, model="dropout"):
        torch.manual_seed(0)
        self.model = MODELS[model]()
        self.rate = torch.tensor(1e-2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, fused=True, capturable=True)
        self.batches = [(x, x.roll(1, -1)) for x in torch.randn(9, 8, *SHAPE)]

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def warm_up(self):
        torch.manual_seed(1)
        for x, y in self.batches[:3]:
            self.step(x, y)

    def state(self):
        return [value.clone() for value in self.model.state_dict().values()]


@pytest.mark.parametrize("model", MODELS)
def test_replay_equals_eager_steps_to_the_bit(model):
    eager, replayed = Training(model), Training(model)
    eager.warm_up()
    replayed.warm_up()
    x, y = (values.clone() for values in replayed.batches[3])
    tape = Tape()
    with tape.capture():
        loss = replayed.step(x, y)
    for number, batch in enumerate(eager.batches[3:]):
        eager.rate.fill_(1e-2 / (number + 1))
        replayed.rate.fill_(1e-2 / (number + 1))
        x.copy_(batch[0])
        y.copy_(batch[1])
        random_state = torch.get_rng_state()
        tape.replay()
        torch.set_rng_state(random_state)
        assert torch.equal(loss, eager.step(*batch))
    assert all(map(torch.equal, eager.state(), replayed.state()))


def test_capture_computes_nothing():
    training = Training()
    training.warm_up()
    before = training.state()
    tape = Tape()
    with tape.capture():
        loss = training.step(*training.batches[0])
    assert loss.isnan()
    assert all(map(torch.equal, before, training.state()))


def test_a_capture_that_looks_at_a_value_is_an_error_and_leaves_nothing_to_replay():
    training = Training()
    tape = Tape()
    with pytest.raises(CourseError, match="looks at a value"), tape.capture():
        training.step(*training.batches[0]).item()
    with pytest.raises(CourseError, match="tape is empty"):
        tape.replay()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the real names stay")
def test_the_stand_ins_for_torch_cuda_know_where_a_step_runs():
    x = torch.zeros(())
    with Watch() as watch:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert (watch.where, watch.in_order) == ("warm-up", True)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert (watch.where, watch.in_order) == ("capture", True)
            x += 1
        assert x.item() == 0
        graph.replay()
        assert x.item() == 1
