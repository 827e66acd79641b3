"""Check the exercise of chapter 06: capture a complete training step with ``torch.cuda.graph``.

Without a GPU, stand-ins for the names of ``torch.cuda`` obey the same rules (``rehearsal.py``). The answer is compared
with eager steps of an equal model on the same batches.

Legend: B samples, C channels, H × W grid points.
"""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect, expect_close
from dltutorial.course.checks.narrow import NarrowMLP
from dltutorial.course.checks.rehearsal import Watch

_N_WARMUP, _SHAPE = 3, (2, 4, 4)
_SAME = "Every loss is that of the example batch, again and again. Copy each new batch into the buffers with copy_()."


class _Lab:
    """A narrow network with its optimizer and batches. Two labs of one seed are equal. Steps are counted by phase."""

    def __init__(self, seed: int, watch: Watch | None = None) -> None:
        device = machine.device()
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = NarrowMLP(_SHAPE, dim=8, depth=2).to(device)
        # A graph does not see that a Python number changes, so the learning rate is a tensor on the device.
        self.rate = torch.tensor(1e-2, device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, fused=True, capturable=True)
        fields = torch.randn(7, 4, *_SHAPE, generator=generator).to(device)
        (self.x, self.y), *self.batches = [(x_BCHW.clone(), x_BCHW.roll(1, -1)) for x_BCHW in fields]
        self.watch, self.ordered = watch, True
        self.steps = {"warm-up": 0, "capture": 0, "outside": 0}

    def step(self, x_BCHW: torch.Tensor, y_BCHW: torch.Tensor) -> torch.Tensor:
        """One eager update."""
        where = self.watch.where if self.watch else "outside"
        self.steps[where] += 1
        if where == "warm-up":
            self.ordered &= self.watch.in_order
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x_BCHW), y_BCHW)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def made(self, fn: Callable) -> Callable:
        """The learner's captured step."""
        captured = fn(self.step, self.x, self.y, _N_WARMUP)
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
        """All parameters as one vector."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def losses(self, step: Callable, batches: list | None = None) -> torch.Tensor:
        """The losses of consecutive steps. The learning rate decreases, and each loss is read before the next step."""
        losses = []
        for n, batch in enumerate(self.batches if batches is None else batches):
            self.rate.fill_(1e-2 / (1 + n))
            loss = step(*batch)
            if not isinstance(loss, torch.Tensor):
                got = None if loss is None else type(loss).__name__
                hint = "" if loss is None else "A Python number makes the CPU wait for the device in every step."
                raise Wrong("a tensor", got, hint)
            losses.append(loss.detach().clone())
        return torch.stack(losses)


def _watched(case: Callable[[Callable, Watch], None]) -> Callable[[Callable], None]:
    """Run a case while torch.cuda is watched or replaced by stand-ins."""

    @functools.wraps(case)
    def run(fn: Callable) -> None:
        with Watch() as watch:
            case(fn, watch)

    return run


@_watched
def _warms_up_then_captures(fn: Callable, watch: Watch) -> None:
    """It makes the warm-up steps on a side stream and then captures one step"""
    lab = _Lab(1, watch)
    lab.made(fn)
    n = lab.steps
    if n["warm-up"] == 0 and n["capture"] and not n["outside"]:
        hint = "Without a warm-up, the graph creates the optimizer state, so every replay resets the state."
        raise Wrong(f"{_N_WARMUP} steps before the capture", "none", hint)
    if watch.nested:
        hint = "End the warm-up first, because the capture has its own stream."
        raise Wrong("a capture after the warm-up", "one inside it", hint)
    hint = "Every step before the capture belongs on a side stream. Use `with torch.cuda.stream(side_stream):`."
    expect(n["outside"], 0, hint=hint)
    expect(n["warm-up"], _N_WARMUP, hint=f"n_warmup is {_N_WARMUP} here. Make this number of steps before the capture.")
    hint = "The side stream started before earlier work had finished. Call wait_stream() first."
    expect(lab.ordered, True, hint=hint)
    hint = "Capture once, with one step inside `with torch.cuda.graph(graph):`."
    mistakes = [(0, "Nothing was captured. Run one step inside `with torch.cuda.graph(graph):`.")]
    expect(watch.n_captures, 1, hint=hint, mistakes=mistakes)
    expect(n["capture"], 1, hint=hint)


@_watched
def _leaves_the_weights_of_the_warm_up(fn: Callable, watch: Watch) -> None:
    """Before the first call, only the warm-up steps have changed the weights"""
    expected, further, lab = _Lab(2, watch).warmed(), _Lab(2).warmed(), _Lab(2)
    further.step(further.x, further.y)
    lab.made(fn)
    hint = "One update too many. Do not replay before the first call."
    mistakes = [(further.weights(), hint)]
    _expect_equal(lab.weights(), expected.weights(), mistakes=mistakes)


@_watched
def _gives_the_losses_of_eager_steps(fn: Callable, watch: Watch) -> None:
    """On new batches, its losses are those of eager steps"""
    lab, eager = _Lab(3, watch), _Lab(3).warmed()
    expected = eager.losses(eager.step)
    fed = {
        _SAME: [(lab.x, lab.y)] * len(lab.batches),
        "x is new, y is not. Copy both into their buffers.": [(x, lab.y) for x, _ in lab.batches],
        "y is new, x is not. Copy both into their buffers.": [(lab.x, y) for _, y in lab.batches],
        "The losses lag one batch behind. Copy first, then replay.": [(lab.x, lab.y), *lab.batches[:-1]],
    }
    mistakes = []
    for hint, batches in fed.items():
        other = _Lab(3).warmed()
        mistakes.append((other.losses(other.step, [tuple(t.clone() for t in batch) for batch in batches]), hint))
    got = lab.losses(lab.made(fn))
    _expect_equal(got, expected, "In each step, copy x and y into the buffers, replay, and return the loss.", mistakes)


@_watched
def _replays_one_capture(fn: Callable, watch: Watch) -> None:
    """All calls replay one capture, and the eager step does not run again"""
    lab = _Lab(4, watch)
    step = lab.made(fn)
    lab.losses(step)
    eager = sum(lab.steps.values()) - _N_WARMUP - 1
    hint = "A capture takes longer than a step, so capture once in make_captured_step. Then only replay."
    expect(watch.n_captures, 1, hint=hint)
    expect(eager, 0, hint="The eager step ran again. Only graph.replay() belongs in the captured step.")
    expect(watch.n_replays, len(lab.batches), hint="Replay the graph once in each step.")


@_watched
def _ends_with_the_same_weights(fn: Callable, watch: Watch) -> None:
    """After six steps with a decreasing learning rate, the weights are those of eager steps"""
    lab, eager = _Lab(5, watch), _Lab(5).warmed()
    eager.losses(eager.step)
    lab.losses(lab.made(fn))
    _expect_equal(lab.weights(), eager.weights(), "The losses agree, but the weights do not. Is one replay missing?")


@_watched
def _keeps_an_old_loss(fn: Callable, watch: Watch) -> None:
    """A loss keeps its value when the next step is made"""
    lab = _Lab(6, watch)
    step = lab.made(fn)
    first = step(*lab.batches[0])
    before = first.detach().clone()
    step(*lab.batches[1])
    hint = "The next replay overwrites the loss that you returned. Return a copy of it, made by clone()."
    expect_close(first, before, hint=hint)


@_watched
def _leaves_the_callers_tensors(fn: Callable, watch: Watch) -> None:
    """The example batch of the caller keeps its values"""
    lab = _Lab(7, watch)
    before = lab.x.clone(), lab.y.clone()
    lab.losses(lab.made(fn))
    hint = "Each step overwrites the example batch of the caller. Let the buffers be clones of it."
    expect_close(lab.x, before[0], hint=hint)
    expect_close(lab.y, before[1], hint=hint)


@_watched
def _keeps_alive_what_the_graph_reads(fn: Callable, watch: Watch) -> None:
    """It keeps a reference to the step if nobody else does"""
    lab = _Lab(9, watch)

    def step(x_BCHW: torch.Tensor, y_BCHW: torch.Tensor) -> torch.Tensor:
        return lab.step(x_BCHW, y_BCHW)

    captured, held = fn(step, lab.x, lab.y, _N_WARMUP), weakref.ref(step)
    del step
    gc.collect()
    hint = "Nothing refers to the step, so the memory of its optimizer is used again. Set captured_step.keeps = step."
    expect(callable(captured) and held() is not None, True, hint=hint)


@_watched
def _refuses_another_shape(fn: Callable, watch: Watch) -> None:
    """A batch of another shape raises a ValueError"""
    lab = _Lab(8, watch)
    step = lab.made(fn)
    x, y = lab.batches[0]
    spread = "copy_() spreads a single sample over the whole buffer. Compare the shapes first and raise ValueError."
    alone = "A wrong y alone is accepted, and copy_() spreads it. Compare the shapes of both."
    number = "Another shape with the same size is accepted. Compare the shapes, not how many numbers there are."
    length = "Another shape with the same length is accepted. Compare the complete shapes, not their first number."
    for batch, hint in (
        ((x[:1], y[:1]), spread),
        ((x, y[:1]), alone),
        ((x[:, :1], y[:, :1]), length),
        ((x.flatten(2)[..., None], y.flatten(2)[..., None]), number),
        ((x[:1], y), "A wrong x alone is accepted, and copy_() spreads it. Compare the shapes of both."),
    ):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in batch)
        wanted = f"ValueError for {shapes}, captured for {tuple(x.shape)}"
        try:
            step(*batch)
        except ValueError:
            continue
        except Exception as error:
            raise Wrong(wanted, error, f"Compare the shapes before copy_() does. {hint}") from error
        raise Wrong(wanted, "a loss", hint)


def _expect_equal(got: Any, expected: Any, hint: str = "", mistakes: list | None = None) -> None:
    """Compare with a tolerance, because other kernels on a GPU may round differently."""
    expect_close(got, expected, hint=hint, mistakes=mistakes or [], rtol=1e-4, atol=1e-6)


_HINTS = (
    "Write four parts: the buffers, the warm-up, one capture, and a function that copies and replays.",
    "On which stream do the warm-up steps run? For which stream must it wait first?",
    "Which addresses does the graph know? So where must a new batch go, and where does its loss appear?",
)
_CODE = (
    "with torch.cuda.graph(graph):",
    "    static_loss = step(static_x, static_y)",
    "# in the function that you return:",
    "static_x.copy_(x)",
    "graph.replay()",
    "return static_loss.clone()",
    "# after the function: captured_step.keeps = step",
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
        _keeps_alive_what_the_graph_reads,
        _refuses_another_shape,
    ),
    hints=_HINTS,
    code=_CODE,
    deadline_s=60.0,
)
