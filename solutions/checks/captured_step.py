"""Checks of chapter 06's exercise: capture a whole training step with ``torch.cuda.graph``.

Where there is no GPU, stand-ins for the names of ``torch.cuda`` obey the same rules (``rehearsal.py``). The answer is
compared with eager steps of an equal model on the same batches.

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
_SAME = "The losses are those of the example batch, again and again. Copy each new batch into the buffers: copy_()."


class _Lab:
    """A narrow network, its optimizer and batches; two of them start alike. Steps are counted by where they run."""

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
        """All parameters in one row."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def losses(self, step: Callable, batches: list | None = None) -> torch.Tensor:
        """Losses of steps in a row, each read before the next, while the learning rate falls."""
        found = []
        for n, batch in enumerate(self.batches if batches is None else batches):
            self.rate.fill_(1e-2 / (1 + n))
            loss = step(*batch)
            if not isinstance(loss, torch.Tensor):
                got = None if loss is None else type(loss).__name__
                hint = "" if loss is None else "A Python number makes the processor wait for the device in every step."
                raise Wrong("a tensor", got, hint)
            found.append(loss.detach().clone())
        return torch.stack(found)


def _watched(case: Callable[[Callable, Watch], None]) -> Callable[[Callable], None]:
    """Run a case while torch.cuda is watched, or stood in for."""

    @functools.wraps(case)
    def run(fn: Callable) -> None:
        with Watch() as watch:
            case(fn, watch)

    return run


@_watched
def _warms_up_then_captures(fn: Callable, watch: Watch) -> None:
    """It makes the warm-up steps on a side stream, then captures one more, once"""
    lab = _Lab(1, watch)
    lab.made(fn)
    n = lab.steps
    if n["warm-up"] == 0 and n["capture"] and not n["outside"]:
        hint = "Without warm-up the optimizer makes its averages inside the graph, and every replay makes them anew."
        raise Wrong(f"{_N_WARMUP} steps before the capture", "none", hint)
    if watch.nested:
        hint = "End the warm-up first: the capture has a stream of its own."
        raise Wrong("a capture after the warm-up", "one inside it", hint)
    hint = "Every step before the capture belongs on a side stream: `with torch.cuda.stream(torch.cuda.Stream())`."
    expect(n["outside"], 0, hint=hint)
    expect(n["warm-up"], _N_WARMUP, hint=f"n_warmup is {_N_WARMUP} here: make so many steps before the capture.")
    hint = "The side stream began at once. What the caller launched may not be done: let it wait_stream() first."
    expect(lab.ordered, True, hint=hint)
    hint = "Capture once, with one step inside `with torch.cuda.graph(graph):`."
    mistakes = [(0, "Nothing was captured: run one step inside `with torch.cuda.graph(graph):`.")]
    expect(watch.n_captures, 1, hint=hint, mistakes=mistakes)
    expect(n["capture"], 1, hint=hint)


@_watched
def _leaves_the_weights_of_the_warm_up(fn: Callable, watch: Watch) -> None:
    """Making it moves the weights by the warm-up steps and no further"""
    expected, further, lab = _Lab(2, watch).warmed(), _Lab(2).warmed(), _Lab(2)
    further.step(further.x, further.y)
    lab.made(fn)
    mistakes = [(further.weights(), "One update too many: capture records and computes nothing, so do not replay yet.")]
    _expect_equal(lab.weights(), expected.weights(), mistakes=mistakes)


@_watched
def _gives_the_losses_of_eager_steps(fn: Callable, watch: Watch) -> None:
    """On new batches, its losses are those of eager steps"""
    lab, eager = _Lab(3, watch), _Lab(3).warmed()
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


@_watched
def _replays_one_capture(fn: Callable, watch: Watch) -> None:
    """All steps replay one capture; Python's step runs no more"""
    lab = _Lab(4, watch)
    step = lab.made(fn)
    lab.losses(step)
    eager = sum(lab.steps.values()) - _N_WARMUP - 1
    hint = "Capturing costs more than it saves: capture once, when the step is made, and replay from then on."
    expect(watch.n_captures, 1, hint=hint)
    expect(eager, 0, hint="The eager step ran again. Only graph.replay() belongs into the captured step.")
    expect(watch.n_replays, len(lab.batches), hint="One replay for each step.")


@_watched
def _ends_with_the_same_weights(fn: Callable, watch: Watch) -> None:
    """After six steps with a falling rate the weights are those of eager steps"""
    lab, eager = _Lab(5, watch), _Lab(5).warmed()
    eager.losses(eager.step)
    lab.losses(lab.made(fn))
    _expect_equal(lab.weights(), eager.weights(), "The losses agree, the weights do not: is one replay missing?")


@_watched
def _keeps_an_old_loss(fn: Callable, watch: Watch) -> None:
    """A loss keeps its value when the next step is made"""
    lab = _Lab(6, watch)
    step = lab.made(fn)
    first = step(*lab.batches[0])
    before = first.detach().clone()
    step(*lab.batches[1])
    hint = "The next replay writes into the loss that you returned. Return a copy: clone()."
    expect_close(first, before, hint=hint)


@_watched
def _leaves_the_callers_tensors(fn: Callable, watch: Watch) -> None:
    """The example batch keeps its values: the buffers are tensors of their own"""
    lab = _Lab(7, watch)
    before = lab.x.clone(), lab.y.clone()
    lab.losses(lab.made(fn))
    hint = "Each step overwrites the caller's example batch. Let the buffers be clones of it."
    expect_close(lab.x, before[0], hint=hint)
    expect_close(lab.y, before[1], hint=hint)


@_watched
def _keeps_alive_what_the_graph_reads(fn: Callable, watch: Watch) -> None:
    """It holds on to the step when its caller does not"""
    lab = _Lab(9, watch)

    def step(x_BCHW: torch.Tensor, y_BCHW: torch.Tensor) -> torch.Tensor:
        return lab.step(x_BCHW, y_BCHW)

    captured, held = fn(step, lab.x, lab.y, _N_WARMUP), weakref.ref(step)
    del step
    gc.collect()
    hint = "The step is forgotten, its optimizer's memory free for others. Keep it: captured_step.keeps = step."
    expect(callable(captured) and held() is not None, True, hint=hint)


@_watched
def _refuses_another_shape(fn: Callable, watch: Watch) -> None:
    """A batch of another shape, x or y, is a ValueError, not a wrong result"""
    lab = _Lab(8, watch)
    step = lab.made(fn)
    x, y = lab.batches[0]
    spread = "copy_() spreads a single sample over the whole buffer. Compare the shapes first, and raise ValueError."
    alone = "A wrong y alone passes, and copy_() spreads it. Compare the shapes of both."
    number = "Another shape with as many numbers passes. Compare the shapes, not how many numbers there are."
    length = "Another shape with as many samples passes. Compare the whole shapes, not their first number."
    for batch, hint in (
        ((x[:1], y[:1]), spread),
        ((x, y[:1]), alone),
        ((x[:, :1], y[:, :1]), length),
        ((x.flatten(2)[..., None], y.flatten(2)[..., None]), number),
        ((x[:1], y), "A wrong x alone passes, and copy_() spreads it. Compare the shapes of both."),
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
    """Equal up to the rounding that other kernels may bring on a GPU."""
    expect_close(got, expected, hint=hint, mistakes=mistakes or [], rtol=1e-4, atol=1e-6)


_HINTS = (
    "Four parts: buffers (clones of the example), warm-up, one capture, and a function that copies and replays.",
    "Which stream do the warm-up steps run on, and what must it wait for?",
    "Which tensors does the graph remember? Where does a new batch have to go, and where does its loss appear?",
)
_CODE = (
    "with torch.cuda.graph(graph):",
    "    static_loss = step(static_x, static_y)",
    "# in the returned function:",
    "static_x.copy_(x)",
    "graph.replay()",
    "return static_loss.clone()",
    "# and behind it: captured_step.keeps = step",
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
