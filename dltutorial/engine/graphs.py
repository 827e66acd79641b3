"""A whole training step as one CUDA graph, in one place: recorded once, then launched in a single call.

In: a step on tensors of fixed shapes. Out: a step with the same results, whose kernels the processor no longer
launches one by one. A graph repeats the same kernels on the same addresses: inputs are copied into static buffers, and
nothing that Python decides is decided again. docs.pytorch.org, "CUDA semantics", section "CUDA Graphs".
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dltutorial.errors import CourseError

WARMUP_STEPS = 3  # run before capture: libraries choose their kernels, the optimizer makes its averages


class CudaGraph:
    """A ``torch.cuda.CUDAGraph`` with a stream of its own, on which it is warmed up and captured.
    CourseError: the device is not CUDA's, or not there.
    """

    def __init__(self, device: str = "cuda") -> None:
        if device != "cuda" or not torch.cuda.is_available():
            raise CourseError("cuda_graph needs a CUDA device, and this does not run on one; set cuda_graph=False")
        self._graph, self._stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    @contextmanager
    def warm_up(self) -> Iterator[None]:
        """Work inside goes to the graph's stream, after what was launched before and ahead of what comes after."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            # The optimizer warns that it is capturable and not being captured: it will be, soon.
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record what is launched inside, without running it.
        CourseError: the step did what cannot be recorded, such as asking for a value.
        """
        self._graph = torch.cuda.CUDAGraph()  # one that was captured before cannot be captured again
        before = torch.cuda.current_stream()
        # thread_local: another thread may pin a batch meanwhile; that is none of this capture's business.
        recording = torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with _own_workspaces(), recording:
                yield
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # torch does not, when ending the capture fails
            why = str(error).partition("\n")[0]
            todo = "move .item(), print(tensor) and `if tensor:` out of it, then start this process (the kernel) anew"
            raise CourseError(f"the step cannot be captured ({why}); {todo}") from error

    def replay(self) -> None:
        """Launch everything that was captured, on the current stream."""
        self._graph.replay()


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Around a capture: matrix products' scratch memory comes from the graph's own pool, and stays there.

    Otherwise the graph remembers the address of scratch memory that torch shares among all work of a stream, and gives
    back when another graph ends or ``reduce-overhead`` records: github.com/pytorch/pytorch/issues/193402.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
    try:
        yield
    finally:
        clear()


class GraphedStep:
    """Runs the first steps as they are, captures the next one, and replays it from then on.

    The optimizer must be *capturable*: its step count and its learning rate are tensors on the device.
    """

    def __init__(self, step: Callable[..., Tensor], graph: CudaGraph) -> None:
        """``step(*batch)`` returns its loss, detached."""
        self._step, self._graph = step, graph
        self._steps_made = 0
        self._batch: tuple[Tensor, ...] | None = None

    def __call__(self, *batch: Tensor) -> Tensor:
        """One update; returns the loss before it, on the device.
        CourseError: another shape or type of numbers than captured.
        """
        if self._steps_made < WARMUP_STEPS:
            self._steps_made += 1
            with self._graph.warm_up():
                return self._step(*batch)
        if self._batch is None:
            buffers = tuple(tensor.clone() for tensor in batch)
            with self._graph.capture():
                self._loss = self._step(*buffers)
            self._batch = buffers
        for buffer, new in zip(self._batch, batch, strict=True):
            if new.shape != buffer.shape or new.dtype != buffer.dtype:  # copying would convert, or spread one sample
                told = f"the graph was captured for batches {tuple(buffer.shape)} of {buffer.dtype}, this one is"
                todo = "leave incomplete batches out, or set cuda_graph=False"
                raise CourseError(f"{told} {tuple(new.shape)} of {new.dtype}; {todo}")
            buffer.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._loss.clone()  # the next replay overwrites it
