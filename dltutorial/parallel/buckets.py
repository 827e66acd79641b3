"""Buckets of parameters, so that a single all-reduce averages many gradients.

``make_buckets`` takes parameters in the order of the model. It returns buckets in the order in which the backward pass
fills them, so the last layer comes first. Horovod calls the same idea tensor fusion.

Source: Li et al. 2020 (arXiv:2006.15704), section 3.2.
"""

from collections.abc import Iterable

from torch import nn

from dltutorial.parallel.bucket_model import assign_buckets


def make_buckets(parameters: Iterable[nn.Parameter], cap_bytes: int) -> list[list[nn.Parameter]]:
    """Assign the trainable parameters to buckets, the last parameter first, with ``bucket_model.assign_buckets``.

    Args:
        parameters: The parameters in the order of the model. Different dtypes and devices get different buckets.
        cap_bytes: A bucket with this many bytes is full. With 0, each parameter has its own bucket.

    Returns:
        The parameters of each bucket. The buckets are in the order in which the backward pass fills them.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    trainable.reverse()  # the backward pass begins with the last layer
    sizes_bytes = [parameter.nbytes for parameter in trainable]
    kinds = [(parameter.dtype, parameter.device) for parameter in trainable]
    groups = assign_buckets(sizes_bytes, cap_bytes, kinds=kinds)
    return [[trainable[i] for i in group] for group in groups]
