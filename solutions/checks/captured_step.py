"""Checks of chapter 06's exercise: capture a whole training step.

The answer works on a graph with ``warm_up()``, ``capture()`` and ``replay()``: a CUDA graph where there is a GPU,
else a tape that obeys the same rules. It is compared with eager steps of an equal model on the same batches.

Legend: B samples, C channels, H × W grid points.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dltutorial import machine
from dltutorial.config import Recipe
from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect, expect_close
from dltutorial.models.tiny import NarrowMLP
from dltutorial.train.forecasting import squared_error
from dltutorial.train.graphs import CudaGraph
from dltutorial.train.recorded_step import Tape
from dltutorial.train.step import make_optimizer, set_learning_rate, train_step

_N_WARMUP, _SHAPE = 3, (2, 4, 4)
_SAME = "The losses are those of the example batch, again and again. Copy each new batch into the buffers: copy_()."


class _Watched:
    """A graph that counts what is asked of it, and knows what runs inside it."""

    def __init__(self) -> None:
        self._graph = CudaGraph() if machine.device() == "cuda" else Tape()
        self.where = "outside"
        self.n_captures = self.n_replays = 0

    @contextlib.contextmanager
    def _inside(self, where: str, block: Any) -> Iterator[None]:
        before, self.where = self.where, where
        try:
            with block:
                yield
        finally:
            self.where = before

    def warm_up(self) -> Any:
        """Steps inside are counted as warm-up."""
        return self._inside("warm-up", self._graph.warm_up())

    def capture(self) -> Any:
        """Record the step inside; nothing is computed."""
        if self.where != "outside":
            raise Wrong("a capture after the warm-up", f"one inside the {self.where}", "End the warm-up first.")
        self.n_captures += 1
        return self._inside("capture", self._graph.capture())

    def replay(self) -> None:
        """Run what was recorded."""
        self.n_replays += 1
        self._graph.replay()


class _Lab:
    """A narrow network, its optimizer and batches; two of them start alike. Steps are counted by where they run."""

    def __init__(self, seed: int) -> None:
        device = machine.device()
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = NarrowMLP(_SHAPE, dim=8, depth=2).to(device)
        recipe = Recipe(cuda_graph=True, optimizer_impl="fused", learning_rate=1e-2)
        self.optimizer = make_optimizer(self.model, recipe)
        fields = torch.randn(7, 4, *_SHAPE, generator=generator).to(device)
        (self.x, self.y), *self.batches = [(x_BCHW.clone(), x_BCHW.roll(1, -1)) for x_BCHW in fields]
        self.graph = _Watched()
        self.steps = {"warm-up": 0, "capture": 0, "outside": 0}

    def step(self, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor) -> torch.Tensor:
        """One eager update."""
        self.steps[self.graph.where] += 1
        return train_step(self.model, (x_BCHW, y_BCHW), squared_error, self.optimizer)

    def made(self, fn: Callable) -> Callable:
        """The learner's captured step."""
        captured = fn(self.step, self.x, self.y, self.graph, _N_WARMUP)
        if not callable(captured):
            hint = "" if captured is None else "Return the function that makes one step, not its result."
            raise Wrong("a function of x and y", captured, hint)
        return captured

    def warmed(self) -> "_Lab":
        """After the warm-up steps on the example batch."""
        for _ in range(_N_WARMUP):
            self.step(self.x, self.y)
        return self

    def weights(self) -> torch.Tensor:
        """All parameters in one row."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def losses(self, step: Callable, batches: list | None = None) -> torch.Tensor:
        """Losses of steps in a row, each read before the next, while the learning rate falls."""
        found = []
        for n, batch in enumerate(self.batches if batches is None else batches):
            set_learning_rate(self.optimizer, 1e-2 / (1 + n))
            loss = step(*batch)
            if not isinstance(loss, torch.Tensor):
                got = None if loss is None else type(loss).__name__
                hint = "" if loss is None else "A Python number makes the processor wait for the device in every step."
                raise Wrong("a tensor", got, hint)
            found.append(loss.detach().clone())
        return torch.stack(found)


def _warms_up_then_captures(fn: Callable) -> None:
    """It makes the warm-up steps inside graph.warm_up(), then captures one more, once"""
    lab = _Lab(1)
    lab.made(fn)
    n = lab.steps
    if n["warm-up"] == 0 and n["capture"] and not n["outside"]:
        hint = "Without warm-up the optimizer makes its averages inside the graph, and every replay makes them anew."
        raise Wrong(f"{_N_WARMUP} steps before the capture", "none", hint)
    hint = "Every step before the capture belongs inside `with graph.warm_up():`, on a stream of its own."
    expect(n["outside"], 0, hint=hint)
    expect(n["warm-up"], _N_WARMUP, hint=f"n_warmup is {_N_WARMUP} here: make so many steps before the capture.")
    hint = "Capture once, with one step inside `with graph.capture():`."
    mistakes = [(0, "Nothing was captured: run one step inside `with graph.capture():`.")]
    expect(lab.graph.n_captures, 1, hint=hint, mistakes=mistakes)
    expect(n["capture"], 1, hint=hint)


def _leaves_the_weights_of_the_warm_up(fn: Callable) -> None:
    """Making it moves the weights by the warm-up steps and no further"""
    expected, further, lab = _Lab(2).warmed(), _Lab(2).warmed(), _Lab(2)
    further.step(further.x, further.y)
    lab.made(fn)
    mistakes = [(further.weights(), "One update too many: capture records and computes nothing, so do not replay yet.")]
    _expect_equal(lab.weights(), expected.weights(), mistakes=mistakes)


def _gives_the_losses_of_eager_steps(fn: Callable) -> None:
    """On new batches, its losses are those of eager steps"""
    lab, eager = _Lab(3), _Lab(3).warmed()
    expected = eager.losses(eager.step)
    fed = {
        _SAME: [(lab.x, lab.y)] * len(lab.batches),
        "x is new, y is not: copy both into their buffers.": [(x, lab.y) for x, _ in lab.batches],
        "y is new, x is not: copy both into their buffers.": [(lab.x, y) for _, y in lab.batches],
        "The losses lag one batch behind. Copy first, then replay.": [(lab.x, lab.y), *lab.batches[:-1]],
    }
    mistakes = []
    for hint, batches in fed.items():
        other = _Lab(3).warmed()
        mistakes.append((other.losses(other.step, [tuple(t.clone() for t in batch) for batch in batches]), hint))
    got = lab.losses(lab.made(fn))
    _expect_equal(got, expected, "Step by step: copy x and y into the buffers, replay, return the loss.", mistakes)


def _replays_one_capture(fn: Callable) -> None:
    """All steps replay one capture; Python's step runs no more"""
    lab = _Lab(4)
    step = lab.made(fn)
    lab.losses(step)
    eager = sum(lab.steps.values()) - _N_WARMUP - 1
    hint = "Capturing costs more than it saves: capture once, when the step is made, and replay from then on."
    expect(lab.graph.n_captures, 1, hint=hint)
    expect(eager, 0, hint="The eager step ran again. Only graph.replay() belongs into the captured step.")
    expect(lab.graph.n_replays, len(lab.batches), hint="One replay for each step.")


def _ends_with_the_same_weights(fn: Callable) -> None:
    """After six steps with a falling rate the weights are those of eager steps"""
    lab, eager = _Lab(5), _Lab(5).warmed()
    eager.losses(eager.step)
    lab.losses(lab.made(fn))
    _expect_equal(lab.weights(), eager.weights(), "The losses agree, the weights do not: is one replay missing?")


def _keeps_an_old_loss(fn: Callable) -> None:
    """A loss keeps its value when the next step is made"""
    lab = _Lab(6)
    step = lab.made(fn)
    first = step(*lab.batches[0])
    before = first.detach().clone()
    step(*lab.batches[1])
    hint = "The next replay writes into the loss that you returned. Return a copy: clone()."
    expect_close(first, before, hint=hint)


def _leaves_the_callers_tensors(fn: Callable) -> None:
    """The example batch keeps its values: the buffers are tensors of their own"""
    lab = _Lab(7)
    before = lab.x.clone(), lab.y.clone()
    lab.losses(lab.made(fn))
    hint = "Each step overwrites the caller's example batch. Let the buffers be clones of it."
    expect_close(lab.x, before[0], hint=hint)
    expect_close(lab.y, before[1], hint=hint)


def _refuses_another_shape(fn: Callable) -> None:
    """A batch of another shape is an error, not a wrong result"""
    lab = _Lab(8)
    step = lab.made(fn)
    x, y = lab.batches[0]
    try:
        step(x[:1], y[:1])
    except Exception:
        return
    hint = "copy_() spreads a single sample over the whole buffer. Compare the shapes first, and raise ValueError."
    raise Wrong("an error", f"a loss for {x[:1].shape[0]} sample, captured for {x.shape[0]}", hint)


def _expect_equal(got: Any, expected: Any, hint: str = "", mistakes: list | None = None) -> None:
    """Equal up to the rounding that other kernels may bring on a GPU."""
    expect_close(got, expected, hint=hint, mistakes=mistakes or [], rtol=1e-4, atol=1e-6)


_HINTS = (
    "Four parts: warm-up steps, buffers (clones of the example), one capture, and a function that copies and replays.",
    "`with graph.capture(): static_loss = step(static_x, static_y)`: the graph remembers these very tensors.",
    "In the returned function: check the shapes, static_x.copy_(x), static_y.copy_(y), graph.replay(), clone the loss.",
)
EXERCISE = Exercise(
    name="captured_step",
    chapter="06",
    cases=(
        _warms_up_then_captures,
        _leaves_the_weights_of_the_warm_up,
        _gives_the_losses_of_eager_steps,
        _replays_one_capture,
        _ends_with_the_same_weights,
        _keeps_an_old_loss,
        _leaves_the_callers_tensors,
        _refuses_another_shape,
    ),
    hints=_HINTS,
    deadline_s=60.0,
)
