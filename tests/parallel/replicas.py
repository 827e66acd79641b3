"""The functions that the ranks of ``test_ddp.py`` run. Ranks import only this file."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dltutorial.parallel.ddp import BucketedDDP, NaiveDDP, OverlappedDDP

TINY = 16 / 2**20  # MiB: a bucket holds two numbers, so every parameter has its own
OURS = {
    "naive": lambda m, **o: NaiveDDP(m, **o),
    "one bucket": lambda m, **o: BucketedDDP(m, **o),
    "many buckets": lambda m, **o: BucketedDDP(m, bucket_cap_mb=TINY, **o),
    "overlapped": lambda m, **o: OverlappedDDP(m, **o),
    "overlapped, many buckets": lambda m, **o: OverlappedDDP(m, bucket_cap_mb=TINY, **o),
}


class Odd(nn.Module):
    """Tied weights, a frozen layer, two dtypes, a buffer, a channels-last weight, and a layer for some calls only."""

    def __init__(self, seed, with_spare=False):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.frozen, self.tied = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.conv = nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last)
        self.last, self.spare = nn.Linear(5, 1), nn.Linear(5, 1) if with_spare else None
        self.double()
        self.single = nn.Parameter(torch.full((1,), 1.0 + seed))
        self.frozen.requires_grad_(False)
        self.register_buffer("calls", torch.tensor(float(seed)))

    def forward(self, x, spare=False):
        self.calls += 1
        x = self.tied(torch.tanh(self.frozen(torch.tanh(self.first(x)))))
        x = self.conv(x.view(-1, 2, 2, 1).expand(-1, 2, 2, 2)).flatten(1)
        head = self.spare if spare else self.last
        return head(torch.cat([x, x, x.sum(1, keepdim=True)], 1)) * self.single.double()


def batches(n, rank=None, world_size=2):
    """Return batches of 8 samples, or the samples of one rank."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(8, 4, generator=generator, dtype=torch.float64) for _ in range(n)]
    return [x if rank is None else x.chunk(world_size)[rank] for x in drawn]


def weights(model):
    return [p.detach().clone() for p in getattr(model, "module", model).parameters()]


def largest_difference(one, other):
    """Return the largest difference between two lists of tensors."""
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def train(model, data, n_micro_batches=1, spare=lambda step: False):
    """Train by SGD with momentum and weight decay, with ``n_micro_batches`` backward passes for each update."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)
    for step, x in enumerate(data):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        micro_batches = x.chunk(n_micro_batches)
        for n, micro_batch in enumerate(micro_batches):
            without_sync = hasattr(model, "no_sync") and n < n_micro_batches - 1
            with model.no_sync() if without_sync else torch.enable_grad():
                ((model(micro_batch, spare=spare(step)) - 3).square().mean() / n_micro_batches).backward()
        optimizer.step()
    return weights(model)


def equal_to_one_process():
    rank = dist.get_rank()
    results = {}
    for n_micro_batches in (1, 2):
        expected = train(Odd(0), batches(5), n_micro_batches=1)
        for name, wrap in {**OURS, "torch": DistributedDataParallel}.items():
            got = train(wrap(Odd(rank)), batches(5, rank), n_micro_batches)
            results[f"{name}, {n_micro_batches} micro-batches"] = largest_difference(got, expected)
    results["moved"] = largest_difference(expected, weights(Odd(0)))
    return results


def unused_without_leave(name):
    rank = dist.get_rank()
    model = OURS[name](Odd(rank, with_spare=True))
    model(batches(1, rank)[0], spare=rank == 1).sum().backward()


def with_batch_norm(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def buffers():
    """Return the difference to torch's DDP of batch norm's running means."""
    rank, results = dist.get_rank(), {}

    def trained(wrap):
        model = wrap(with_batch_norm(rank))
        for x in batches(4, rank):
            with model.no_sync():
                model(x).square().mean().backward()
            model(x).square().mean().backward()
        model(x)
        return [*(b.double() for b in model.module.buffers()), *(p.grad for p in model.parameters())]

    expected = trained(DistributedDataParallel)
    for name, wrap in OURS.items():
        results[name] = largest_difference(trained(wrap), expected)
    return results


def evaluation_on_rank_0_alone():
    """Return the difference of batch norm's buffers to those without the evaluation."""
    rank = dist.get_rank()

    def trained(with_evaluation):
        model = NaiveDDP(with_batch_norm(rank))
        for x in batches(3, rank):
            model.train()
            model(x).square().mean().backward()
            if with_evaluation and rank == 0:
                with torch.no_grad():
                    model.eval()(x)
        return [b.double() for b in model.module.buffers()]

    return largest_difference(trained(with_evaluation=True), trained(with_evaluation=False))


def gradients_of_zero():
    """Return differences to one process, if ranks use different layers, and unused gradients are zero, not None."""
    rank, results = dist.get_rank(), {}
    (x,) = batches(1)
    expected = Odd(0, with_spare=True)
    for half, spare in zip(x.chunk(2), (False, True), strict=True):
        (expected(half, spare=spare).mean() / 2).backward()
    for name, wrap in OURS.items():
        model = wrap(Odd(rank, with_spare=True))
        for parameter in model.trainable.values():
            parameter.grad = torch.zeros_like(parameter)
        model(x.chunk(2)[rank], spare=rank == 1).mean().backward()
        means = [p.grad for p in model.parameters() if p.requires_grad]
        results[name] = largest_difference(means, [p.grad for p in expected.parameters() if p.requires_grad])
    return results


def other_order():
    """Rank 1 holds the parameters of rank 0 in another order."""
    layers = {"first": nn.Linear(2, 2), "last": nn.Linear(2, 2)}
    names = sorted(layers, reverse=dist.get_rank() == 1)
    NaiveDDP(nn.ModuleDict({name: layers[name] for name in names}))


def uneven_without_join():
    rank = dist.get_rank()
    train(OverlappedDDP(Odd(rank)), batches(3 + 2 * rank, rank))


def messages():
    """Return the all-reduces of one backward pass, with their sizes, and its end, for each wrapper."""
    results = {}
    original = dist.all_reduce
    for name, wrap in OURS.items():
        model = wrap(nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(4))).double())
        events = []

        def counted(tensor, *args, events=events, **kwargs):
            events.append(("send", tensor.numel()))
            return original(tensor, *args, **kwargs)

        x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        dist.all_reduce = counted
        try:
            y = model(x)
            x.register_hook(lambda gradient, events=events: events.append(("backward is over", 0)))
            y.sum().backward()
        finally:
            dist.all_reduce = original
        results[name] = events
    return results


def compressed(scaled_fp16):
    """Return the relative errors of compressed gradients, and the difference between our DDP and torch's."""
    rank = dist.get_rank()

    def gradients(wrap, hook=None, state=None, scale=1.0):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)))
        if hook:
            model.register_comm_hook(state, hook)
        for x in batches(3, rank):
            model.zero_grad()
            (model(x.float()).square().mean() * scale).backward()
        return [p.grad / scale for p in model.parameters()]

    def error(got, exact):
        got, exact = (torch.cat([g.double().flatten() for g in gradients]) for gradients in (got, exact))
        return float((got - exact).norm() / exact.norm())

    tiny = 1e-6
    exact = {scale: gradients(DistributedDataParallel, scale=scale) for scale in (1.0, tiny)}
    mean, fp16 = default_hooks.allreduce_hook, default_hooks.fp16_compress_hook
    power = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
    power.rng.seed(0)
    return {
        "mean": error(gradients(OverlappedDDP, mean), exact[1.0]),
        "fp16": error(gradients(OverlappedDDP, fp16), exact[1.0]),
        "fp16, tiny": error(gradients(OverlappedDDP, fp16, None, tiny), exact[tiny]),
        "scaled, tiny": error(gradients(OverlappedDDP, scaled_fp16, 2.0**24, tiny), exact[tiny]),
        "scaled too far": error(gradients(OverlappedDDP, scaled_fp16, 2.0**24), exact[1.0]),
        "power": error(gradients(OverlappedDDP, powerSGD_hook.powerSGD_hook, power), exact[1.0]),
        "fp16, ours against torch's": largest_difference(
            *(gradients(w, fp16) for w in (OverlappedDDP, DistributedDataParallel))
        ),
    }


def averaged(average):
    """Return the means of two tensors over the ranks, and the number of all-reduces."""
    tensors, original, sent = [torch.arange(2.0).view(2, 1).expand(2, 2).clone(), torch.ones(1, 1)], dist.all_reduce, []
    tensors = [tensor + dist.get_rank() * (1 + 2 * n) for n, tensor in enumerate(tensors)]

    def counted(tensor, *args, **kwargs):
        sent.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counted
    try:
        average(tensors)
    finally:
        dist.all_reduce = original
    return tensors[0].tolist(), tensors[1].tolist(), len(sent)


def many_cases(*names):
    """Run several of the functions above in one launch."""
    return {name: globals()[name]() for name in names}


def on_cuda():
    """Compare with one process, as ``equal_to_one_process``, on this rank's GPU, without the channels-last weight."""
    rank, results = dist.get_rank(), {}
    data = [x.cuda() for x in batches(5)]
    expected = train(plain(0), data)
    for name, wrap in {**OURS, "torch": DistributedDataParallel}.items():
        model = wrap(plain(rank))
        results[name] = largest_difference(
            train(model, [x[4 * rank : 4 * rank + 4] for x in data], n_micro_batches=2), expected
        )
    results["moved"] = largest_difference(expected, weights(plain(0)))
    return results


def plain(seed):
    model = Odd(seed)
    model.conv = model.conv.to(memory_format=torch.contiguous_format)
    return model.cuda()
