"""Buckets: many gradients in one flat tensor, so that one message carries them all.

In: parameters in the order of the model. Out: buckets in the order in which the backward pass fills them, last layer
first. Horovod calls the same idea tensor fusion. Li et al. 2020 (arXiv:2006.15704), section 3.2.

A :class:`Bucket` answers to the methods of torch's ``GradBucket``, so communication hooks written for torch's DDP
take ours too.

Legend: N numbers of all gradients in the bucket.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import assign_buckets


class Bucket:
    """One flat tensor, and where in it each parameter's gradient stands."""

    def __init__(self, parameters: Sequence[nn.Parameter], index: int = 0, n_buckets: int = 1) -> None:
        """Make the flat tensor.

        Args:
            parameters: of one dtype, on one device.
            index: of this bucket, 0 is filled first.
            n_buckets: how many there are.
        """
        self._index, self._n_buckets = index, n_buckets
        sizes = [parameter.numel() for parameter in parameters]
        self._flat_N = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        parts = self._flat_N.split(sizes)
        self._views = {p: part.view(p.shape) for part, p in zip(parts, parameters, strict=True)}

    def buffer(self) -> Tensor:
        """The flat tensor itself."""
        return self._flat_N

    def set_buffer(self, flat_N: Tensor) -> None:
        """Overwrite the numbers; the memory stays."""
        self._flat_N.copy_(flat_N)

    def gradients(self) -> list[Tensor]:
        """Each parameter's place in the flat tensor, in the parameter's shape."""
        return list(self._views.values())

    def parameters(self) -> list[nn.Parameter]:
        """Whose gradients it holds."""
        return list(self._views)

    def index(self) -> int:
        """0 is filled first."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last one of the step."""
        return self._index == self._n_buckets - 1

    def copy_in(self, parameter: nn.Parameter) -> None:
        """Copy a parameter's gradient into its place. CourseError: a sparse gradient."""
        gradient, view = parameter.grad, self._views[parameter]
        if gradient is None or gradient.layout != torch.strided:
            raise CourseError("a bucket holds no sparse gradient; make the embedding with sparse=False")
        view.copy_(gradient.detach())

    def copy_out(self) -> None:
        """Give parameters their gradients back."""
        for parameter, view in self._views.items():
            if parameter.grad is not None:
                parameter.grad.copy_(view)


def make_buckets(parameters: Iterable[nn.Parameter], cap_bytes: int, first_bytes: int | None = None) -> list[Bucket]:
    """Pack the trainable parameters, last one first, into buckets, by the rule of ``bucket_model.assign_buckets``.

    Args:
        parameters: in the order of the model; dtypes and devices may be mixed, a bucket is of one kind.
        cap_bytes: with which a bucket is full; 0 gives every parameter a bucket of its own.
        first_bytes: the same for the first bucket; default: as all others.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad][::-1]
    sizes = [parameter.numel() * parameter.element_size() for parameter in trainable]
    kinds = [(parameter.dtype, parameter.device) for parameter in trainable]
    groups = assign_buckets(sizes, cap_bytes, first_bytes, kinds)
    return [Bucket([trainable[n] for n in group], index, len(groups)) for index, group in enumerate(groups)]
