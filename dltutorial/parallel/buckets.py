"""A bucket is one flat tensor that holds many gradients, so that a single all-reduce averages all of them.

``make_buckets`` takes parameters in the order of the model. It returns buckets in the order in which the backward pass
fills them, so the last layer comes first. Horovod calls the same idea tensor fusion.

    parameters    weight (2, 3)           bias (2)
                       │                     │
    bucket        [ w00 w01 w02 w10 w11 w12  b0 b1 ]    N = 8 values, one all-reduce

A :class:`Bucket` has the methods of torch's ``GradBucket``. Therefore communication hooks that were written for torch's
DDP also work with the classes of the module ``ddp``.

Legend: N values in a bucket.

Source: Li et al. 2020 (arXiv:2006.15704), section 3.2.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dltutorial.parallel.bucket_model import assign_buckets


class Bucket:
    """A flat tensor with a place for the gradient of each of its parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], index: int = 0, n_buckets: int = 1) -> None:
        """Allocate the flat tensor.

        Args:
            parameters: The parameters. They have the same dtype and device.
            index: The number of this bucket. The backward pass fills bucket 0 first.
            n_buckets: The number of all buckets.
        """
        self._index = index
        self._n_buckets = n_buckets
        sizes = [parameter.numel() for parameter in parameters]
        first = parameters[0]
        self._flat_N = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self._view_of: dict[nn.Parameter, Tensor] = {}
        for parameter, place in zip(parameters, self._flat_N.split(sizes), strict=True):
            self._view_of[parameter] = place.view(parameter.shape)

    def buffer(self) -> Tensor:
        """Return the flat tensor itself."""
        return self._flat_N

    def set_buffer(self, flat_N: Tensor) -> None:
        """Overwrite the values of the flat tensor. Its memory stays the same."""
        self._flat_N.copy_(flat_N)

    def gradients(self) -> list[Tensor]:
        """Return a view of each gradient in the flat tensor, in the shape of its parameter."""
        return list(self._view_of.values())

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients this bucket holds."""
        return list(self._view_of)

    def index(self) -> int:
        """Return the number of this bucket. The backward pass fills bucket 0 first."""
        return self._index

    def is_last(self) -> bool:
        """Return whether this bucket is the last one of the step."""
        return self._index == self._n_buckets - 1

    def copy_in(self, parameter: nn.Parameter) -> None:
        """Copy a parameter's gradient into its place in the flat tensor."""
        assert parameter.grad is not None
        self._view_of[parameter].copy_(parameter.grad)

    def copy_out(self) -> None:
        """Copy the flat tensor back into the gradients of the parameters."""
        for parameter, view in self._view_of.items():
            if parameter.grad is not None:
                parameter.grad.copy_(view)


def make_buckets(parameters: Iterable[nn.Parameter], cap_bytes: int, first_bytes: int | None = None) -> list[Bucket]:
    """Assign the trainable parameters to buckets, the last parameter first, with ``bucket_model.assign_buckets``.

    Args:
        parameters: The parameters in the order of the model. Different dtypes and devices get different buckets.
        cap_bytes: A bucket with this many bytes is full. With 0, each parameter has its own bucket.
        first_bytes: The limit of the first bucket. The default is ``cap_bytes``.

    Returns:
        The buckets in the order in which the backward pass fills them.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    trainable.reverse()  # the backward pass begins with the last layer
    sizes_bytes = [parameter.nbytes for parameter in trainable]
    kinds = [(parameter.dtype, parameter.device) for parameter in trainable]
    groups = assign_buckets(sizes_bytes, cap_bytes, first_bytes, kinds)
    buckets = []
    for index, group in enumerate(groups):
        members = [trainable[i] for i in group]
        buckets.append(Bucket(members, index, len(groups)))
    return buckets
