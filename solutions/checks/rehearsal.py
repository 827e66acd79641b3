"""A rehearsal of CUDA graphs where there is no GPU: stand-ins for names of ``torch.cuda``, which obey the same rules.

In: a step on tensors of fixed shapes. Out: ``tape.replay()``, which repeats the operations of ``with tape.capture():``
on the same memory; no model, autograd or optimizer of Python runs again. It is no graph: Python still calls the
operations one by one. Where there is a GPU, the real names stay, and are watched.

Source: docs.pytorch.org, "Extending PyTorch" (TorchDispatchMode) and "CUDA semantics" (the rules of capture).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dltutorial.errors import CourseError

_ATEN = torch.ops.aten
# Operations that can write straight into given memory, and by which argument. The result of any other is copied there.
_INTO: dict[Any, tuple[Callable, str]] = {
    _ATEN.mm.default: (torch.mm, "out"),
    _ATEN.addmm.default: (torch.addmm, "out"),
    _ATEN.add.Tensor: (torch.add, "out"),
    _ATEN.mul.Tensor: (torch.mul, "out"),
    _ATEN.relu.default: (_ATEN.relu.out, "out"),
    _ATEN.threshold_backward.default: (_ATEN.threshold_backward.grad_input, "grad_input"),
    _ATEN.sum.dim_IntList: (torch.sum, "out"),
}
_HOST_MUST_LOOK = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Tape(TorchDispatchMode):
    """Records what a step does to memory, without doing it, and then does it as often as you like.

    As with a CUDA graph, capture leaves all values as they were: new tensors hold NaN until the first replay. Unlike
    there, every result keeps memory of its own, and random numbers always come from the generator anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], object]] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record what runs inside.

        Raises:
            CourseError: the step asks for a value, or for a shape that depends on one, while it is recorded.
        """
        self._calls, random_state = [], torch.get_rng_state()
        # All memory that is touched, by address, and what it held; None: it was made inside.
        self._before: dict[int, tuple[Any, Any]] = {}
        try:
            with self:
                yield
        except BaseException:
            self._calls = []
            raise
        finally:
            torch.set_rng_state(random_state)
            for storage, before in self._before.values():
                if before is None:  # nobody shall take a new tensor for a result
                    storage.fill_(0xFF)  # all bits set: NaN in every floating-point format
                else:
                    storage.copy_(before)
            self._before.clear()

    def replay(self) -> None:
        """Run the operations again, in order, on the memory they were recorded with.

        Raises:
            CourseError: nothing was captured.
        """
        if not self._calls:
            raise CourseError("the tape is empty: nothing was captured; run a step inside `with tape.capture():` first")
        with torch.no_grad():
            for call in self._calls:
                call()

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Called for every operation below autograd, so for those of the backward pass and of the optimizer too."""
        if _HOST_MUST_LOOK & set(op.tags):
            raise CourseError(
                f"the step looks at a value ({op.overloadpacket.__name__}) while it is captured, and no replay would "
                "look again; move .item(), print(tensor) and `if tensor:` out of the captured step"
            )
        # Aliases share the memory but not the autograd graph, which the tape would keep alive.
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))
        for storage in _storages((args, kwargs)):
            if storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = storage, storage.clone()
        result = op(*args, **kwargs)
        if op.is_view or op.namespace == "profiler":
            return result
        if op._schema.is_mutable:  # it writes into its arguments, which the tape has
            self._calls.append(partial(op, *args, **kwargs))
            return result
        results = [tensor.detach() for tensor in _tensors(result)]
        for storage in _storages(results):  # some operations return their argument under a new name
            self._before.setdefault(storage.data_ptr(), (storage, None))
        if op in _INTO:
            into, name = _INTO[op]
            self._calls.append(partial(into, *args, **kwargs, **{name: results[0]}))
        else:
            self._calls.append(partial(_run_and_copy, op, args, kwargs, results))
        return result


def _run_and_copy(op: Callable, args: tuple, kwargs: dict, results: list[Tensor]) -> None:
    for recorded, fresh in zip(results, _tensors(op(*args, **kwargs)), strict=True):
        recorded.copy_(fresh)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in _tensors(tree)]


class _Stream:
    """A stand-in for torch.cuda.Stream: it only knows what it waited for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        del device, priority

    def wait_stream(self, stream: Any) -> None:
        """Work that comes next begins when that stream is done."""

    def synchronize(self) -> None:
        """On a CPU work is done when its call returns."""


class Watch:
    """What an answer does with ``torch.cuda``, inside ``with Watch() as watch:``.

    Where there is a GPU the real names do the work; elsewhere stand-ins do, for as long as the block lasts.
    """

    def __init__(self) -> None:
        self.n_captures = self.n_replays = 0
        self.in_order = False  # the side stream has waited for what was launched before
        self.nested = False  # a capture began on the side stream, before the warm-up was over
        self._main, self._real = _Stream(), torch.cuda.is_available()
        self._streams, self._capturing = [self._main], False
        self._patches = ExitStack()

    @property
    def where(self) -> str:
        """Where a step runs now: "outside", "warm-up" (on a side stream) or "capture"."""
        if torch.cuda.is_current_stream_capturing() if self._real else self._capturing:
            return "capture"
        return "outside" if torch.cuda.current_stream() == torch.cuda.default_stream() else "warm-up"

    def __enter__(self) -> "Watch":
        watch, real = self, self._real
        stream, graph = (torch.cuda.Stream, torch.cuda.CUDAGraph) if real else (_Stream, _Graph)
        waits, replays, synchronizes = stream.wait_stream, graph.replay, torch.cuda.synchronize

        class Capture(torch.cuda.graph if real else _Capture):  # type: ignore[misc]
            def __enter__(self) -> Any:
                watch.n_captures += 1
                watch.nested |= watch.where == "warm-up"
                watch._capturing = True
                return super().__enter__()

            def __exit__(self, *error: Any) -> Any:
                watch._capturing = False
                return super().__exit__(*error)

        def wait_stream(self: Any, other: Any) -> None:
            watch.in_order |= self != torch.cuda.default_stream()
            waits(self, other)

        def synchronize(device: Any = None) -> None:
            watch.in_order = True
            if real:
                synchronizes(device)

        def replay(self: Any) -> None:
            watch.n_replays += 1
            replays(self)

        names: dict[str, Any] = {"graph": Capture, "synchronize": synchronize}
        if not real:
            names |= {"Stream": _Stream, "CUDAGraph": _Graph, "stream": self._on}
            names |= {"current_stream": lambda device=None: self._streams[-1]}
            names |= {"default_stream": lambda device=None: self._main}
        for name, instead in names.items():
            self._patches.enter_context(mock.patch.object(torch.cuda, name, instead))
        self._patches.enter_context(mock.patch.object(stream, "wait_stream", wait_stream))
        self._patches.enter_context(mock.patch.object(graph, "replay", replay))
        return self

    def __exit__(self, *error: Any) -> None:
        self._patches.close()

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        self._streams.append(stream)
        try:
            yield
        finally:
            self._streams.pop()


class _Stream:
    """Stands in for torch.cuda.Stream: on a CPU work is done when its call returns."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        """The arguments of the real one; nothing depends on them."""

    def wait_stream(self, stream: Any) -> None:
        """There is nothing to wait for."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class _Graph(Tape):
    """Stands in for torch.cuda.CUDAGraph."""

    def pool(self) -> tuple[int, int]:
        """Memory to share; a tape has none."""
        return 0, 0


class _Capture:
    """Stands in for torch.cuda.graph."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "") -> None:
        """The arguments of the real one; only the graph matters."""
        if not isinstance(cuda_graph, _Graph):
            raise TypeError(f"torch.cuda.graph takes a torch.cuda.CUDAGraph, not {cuda_graph!r}")
        self._block = cuda_graph.capture()

    def __enter__(self) -> Any:
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._block.__exit__(*error)
