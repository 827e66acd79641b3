"""A whole training step as one CUDA graph, in one place: recorded once, then launched in a single call.

In: a step on tensors of fixed shapes. Out: a step with the same results, whose kernels the processor no longer
launches one by one. A graph repeats the very same kernels on the very same addresses: inputs are copied into static
buffers, and nothing that Python decides is decided again. docs.pytorch.org, "CUDA Graphs".

Legend: B samples, C channels, H × W grid points.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dltutorial.errors import CourseError

WARMUP_STEPS = 3  # run before capture: libraries choose their kernels, the optimizer makes its averages


class GraphedStep:
    """Runs the first steps as they are, captures the next one, and replays it from then on.

    The optimizer must be *capturable*: its step count and its learning rate are tensors on the device.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], device: str = "cuda") -> None:
        """Nothing runs yet.

        Raises:
            CourseError: there is no CUDA device to run a graph on.
        """
        if device != "cuda":
            raise CourseError("cuda_graph needs a CUDA device and there is none; set cuda_graph=False")
        self._step, self._steps_made = step, 0
        self._side = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x_BCHW: Tensor, y_BCHW: Tensor) -> Tensor:
        """One update; returns the loss before it, on the device.

        Raises:
            CourseError: another shape than the one captured.
        """
        if self._steps_made < WARMUP_STEPS:
            self._steps_made += 1
            return self._warm_up(x_BCHW, y_BCHW)
        if self._graph is None:
            self._capture(x_BCHW, y_BCHW)
        if x_BCHW.shape != self._x_BCHW.shape:
            raise CourseError(
                f"the graph was captured for batches {tuple(self._x_BCHW.shape)}, this one is {tuple(x_BCHW.shape)}; "
                "leave incomplete batches out, or set cuda_graph=False"
            )
        self._x_BCHW.copy_(x_BCHW, non_blocking=True)
        self._y_BCHW.copy_(y_BCHW, non_blocking=True)
        self._graph.replay()
        return self._loss.clone()  # the next replay overwrites it

    def _warm_up(self, x_BCHW: Tensor, y_BCHW: Tensor) -> Tensor:
        """An ordinary step on a stream of its own, as capture wants it; it counts like any other."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            loss = self._step(x_BCHW, y_BCHW)
        torch.cuda.current_stream().wait_stream(self._side)
        return loss

    def _capture(self, x_BCHW: Tensor, y_BCHW: Tensor) -> None:
        """Record a step without running it."""
        self._x_BCHW, self._y_BCHW = x_BCHW.clone(), y_BCHW.clone()
        graph = torch.cuda.CUDAGraph()
        # Another thread may pin a batch meanwhile; that is none of this capture's business.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._loss = self._step(self._x_BCHW, self._y_BCHW)
        self._graph = graph
