"""A recorded step: a tape of all its operations, with the very tensors they read and wrote, to be run again.

In: a step on tensors of fixed shapes, run inside ``with tape.capture():``. Out: ``tape.replay()``, which repeats the
operations on the same memory; no model, autograd or optimizer of Python runs again. It obeys the rules of a CUDA graph
on any machine, and teaches them. It is none: here Python still calls the operations one by one.

Source: docs.pytorch.org, "Extending PyTorch" (TorchDispatchMode) and "CUDA semantics" (the rules of capture).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

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
_HOST_MUST_LOOK = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Tape:
    """Records what a step does to memory, without doing it, and then does it as often as you like.

    As with a CUDA graph, capture leaves all values as they were: new tensors hold NaN until the first replay. Unlike
    there, every result keeps memory of its own, and random numbers always come from the generator anew.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self.names: list[str] = []
        self.n_captures = self.n_replays = 0

    def __len__(self) -> int:
        """Operations in one replay. Views are none of them: they only name memory that is there already."""
        return len(self._calls)

    def warm_up(self) -> AbstractContextManager:
        """Around the steps before capture. On a CPU nothing needs to be arranged."""
        return nullcontext()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record what runs inside.

        Raises:
            CourseError: the step asks for a value, or for a shape that depends on one, while it is recorded.
        """
        recorder = _Recorder()
        self._calls, self.names = [], []
        random_state = torch.get_rng_state()
        try:
            with recorder:
                yield
        finally:
            torch.set_rng_state(random_state)
            recorder.undo()
        self._calls, self.names = recorder.calls, recorder.names
        self.n_captures += 1

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
        self.n_replays += 1


class _Recorder(TorchDispatchMode):
    """Sees every operation below autograd, so those of the backward pass and of the optimizer too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []
        self.names: list[str] = []
        self._made: dict[int, Any] = {}
        self._found: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if any(tag in op.tags for tag in _HOST_MUST_LOOK):
            raise CourseError(
                f"the step looks at a value ({op.overloadpacket.__name__}) while it is captured, and no replay would "
                "look again; move .item(), print(tensor) and `if tensor:` out of the captured step"
            )
        # Aliases share the memory but not the autograd graph, which the tape would keep alive.
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        for tensor in _tensors((args, kwargs)):
            self._keep(tensor.untyped_storage())
        result = op(*args, **kwargs)
        if op.namespace != "profiler" and not op.is_view:
            self._record(op, args, kwargs, result)
        return result

    def _keep(self, storage: torch.UntypedStorage) -> None:
        """Remember the values of memory that was there before the capture."""
        key = storage.data_ptr()
        if key not in self._made and key not in self._found:
            self._found[key] = (storage, storage.clone())

    def _record(self, op: Any, args: tuple, kwargs: dict, result: Any) -> None:
        self.names.append(op.overloadpacket.__name__)
        if op._schema.is_mutable:  # it writes into its arguments, which the tape has
            self.calls.append(partial(op, *args, **kwargs))
            return
        results = [tensor.detach() for tensor in _tensors(result)]
        for storage in (tensor.untyped_storage() for tensor in results):
            if storage.data_ptr() not in self._found:  # some operations return their argument under a new name
                self._made[storage.data_ptr()] = storage
        if op in _INTO:
            into, name = _INTO[op]
            self.calls.append(partial(into, *args, **kwargs, **{name: results[0]}))
        else:
            self.calls.append(partial(_run_and_copy, op, args, kwargs, results))

    def undo(self) -> None:
        """Put back what was there before, and make sure that nobody takes a new tensor for a result."""
        for storage, before in self._found.values():
            storage.copy_(before)
        for storage in self._made.values():
            storage.fill_(0xFF)  # all bits set: NaN in every floating-point format


def _run_and_copy(op: Callable, args: tuple, kwargs: dict, results: list[Tensor]) -> None:
    for recorded, fresh in zip(results, _tensors(op(*args, **kwargs)), strict=True):
        recorded.copy_(fresh)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
