"""What ranks do in the tests of the noise scale. A file of its own, so that a rank imports nothing but this.

The problem whose answer is known: the loss of a sample x is |w − x|² / 2, its gradient w − x. With x of mean 0 and
variance σ² in each of N numbers, |G|² = |w|² and tr(Σ) = N σ².
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dltutorial.convergence.noise import squared_length, two_batches
from dltutorial.convergence.rank_noise import RankNoise
from dltutorial.errors import CourseError
from dltutorial.parallel.comm_hooks import scaled_fp16
from dltutorial.parallel.ddp import BucketedDDP, NaiveDDP, OverlappedDDP

TINY = 16 / 2**20  # MiB: every parameter has a bucket of its own
WRAPPERS = {
    "bucketed": lambda m: BucketedDDP(m, bucket_cap_mb=TINY),
    "overlapped": lambda m: OverlappedDDP(m, bucket_cap_mb=TINY),
    "overlapped, views": lambda m: OverlappedDDP(m, bucket_cap_mb=TINY, gradient_as_bucket_view=True),
    "torch": lambda m: DistributedDataParallel(m, bucket_cap_mb=TINY),
    "torch, views": lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True),
}
SIZES, SIGMA = (3, 5), 2.0  # of the two weights
SQUARED, TRACE = 0.5**2 * sum(SIZES), SIGMA**2 * sum(SIZES)


class Bowl(nn.Module):
    """The known problem, with two weights, so that there are two buckets."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.full((size,), 0.5, dtype=torch.float64)) for size in SIZES)

    def forward(self, x):
        return (torch.cat([self.one, self.other]) - x).square().sum(1).mean() / 2


def part(batch, step, rank, device="cpu"):
    """What a rank sees in a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return SIGMA * torch.randn(batch, sum(SIZES), generator=generator, dtype=torch.float64).to(device)


def alone(batch, step, world_size, device="cpu"):
    """The formula in one process: every rank's gradient by hand, then their mean."""
    gradients = []
    for rank in range(world_size):
        bowl = Bowl().to(device)
        bowl(part(batch, step, rank, device)).backward()
        gradients.append(torch.cat([p.grad for p in bowl.parameters()]))
    small = sum(squared_length([g]) for g in gradients) / world_size
    return two_batches(small, squared_length([sum(gradients) / world_size]), batch, batch * world_size)


def as_one_process(batch=4, steps=3, device="cpu"):
    """{wrapper: the largest relative difference from the formula in one process}, on this rank."""
    rank, world_size, found = dist.get_rank(), dist.get_world_size(), {}
    for name, wrap in WRAPPERS.items():
        model = wrap(Bowl().to(device))
        noise, apart = RankNoise(model, batch), []
        for step in range(steps):
            model.zero_grad()
            model(part(batch, step, rank, device)).backward()
            for got, expected in zip(noise.after_backward(), alone(batch, step, world_size, device), strict=True):
                apart.append(abs(float(got / expected) - 1))
        found[name] = max(apart)
    return found


def many_steps(batch=4, steps=1500):
    """All steps' estimates, and the running scale, at weights that stay."""
    model = OverlappedDDP(Bowl())
    noise, found = RankNoise(model, batch, decay=0.999), []
    for step in range(steps):
        model.zero_grad()
        model(part(batch, step, dist.get_rank())).backward()
        found.append([float(value) for value in noise.after_backward()])
    return found, noise.running.scale


def accumulated():
    """Two micro-batches in a step give what one batch of both gives."""
    rank, found = dist.get_rank(), []
    for micro in (1, 2):
        model = OverlappedDDP(Bowl())
        noise = RankNoise(model, 8)
        pieces = part(8, 0, rank).chunk(micro)
        if micro == 2:
            with model.no_sync():
                (model(pieces[0]) / 2).backward()
        (model(pieces[-1]) / micro).backward()
        found.append([float(value) for value in noise.after_backward()])
    return found


def compressed():
    """With fp16 on the way the gradients that arrive are rounded, the ranks' own are not."""
    model = OverlappedDDP(Bowl().float())
    noise = RankNoise(model, 4, hook=scaled_fp16())
    model(part(4, 0, dist.get_rank()).float()).backward()
    return [float(value) for value in noise.after_backward()], [
        float(value) for value in alone(4, 0, dist.get_world_size())
    ]


def messages():
    """Sizes of all messages of one step with and without the estimate."""
    original, found = dist.all_reduce, []
    for listens in (False, True):
        model, sizes = OverlappedDDP(Bowl()), []
        noise = RankNoise(model, 4) if listens else None

        def counted(tensor, *args, sizes=sizes, **kwargs):
            sizes.append(tensor.numel())
            return original(tensor, *args, **kwargs)

        dist.all_reduce = counted
        try:
            model(part(4, 0, dist.get_rank())).backward()
            if noise:
                noise.after_backward()
        finally:
            dist.all_reduce = original
        found.append(sizes)
    return found


def refusals():
    def error_of(function):
        try:
            function()
        except CourseError as error:
            return str(error)
        return ""

    silent = RankNoise(OverlappedDDP(Bowl()), 4)
    return [
        error_of(lambda: RankNoise(NaiveDDP(Bowl()), 4)),
        error_of(lambda: RankNoise(OverlappedDDP(Bowl()), 4 + dist.get_rank())),
        error_of(silent.after_backward),
    ]


def one_rank():
    RankNoise(OverlappedDDP(Bowl()), 4)


def many_cases(*names):
    return {name: globals()[name]() for name in names}
