"""The functions that the ranks of ``test_ddp.py`` run. Ranks import only this file."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def batches(n, rank=None, world_size=2):
    """Return batches of 8 samples, or the samples of one rank."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(8, 4, generator=generator, dtype=torch.float64) for _ in range(n)]
    return [x if rank is None else x.chunk(world_size)[rank] for x in drawn]


def compressed(scaled_fp16):
    """Return the relative errors of gradients that a hook compresses."""
    rank = dist.get_rank()

    def gradients(hook=None, state=None, scale=1.0):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)))
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
    exact = {scale: gradients(scale=scale) for scale in (1.0, tiny)}
    mean, fp16 = default_hooks.allreduce_hook, default_hooks.fp16_compress_hook
    power = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
    power.rng.seed(0)
    return {
        "mean": error(gradients(mean), exact[1.0]),
        "fp16": error(gradients(fp16), exact[1.0]),
        "fp16, tiny": error(gradients(fp16, None, tiny), exact[tiny]),
        "scaled, tiny": error(gradients(scaled_fp16, 2.0**24, tiny), exact[tiny]),
        "scaled too far": error(gradients(scaled_fp16, 2.0**24), exact[1.0]),
        "power": error(gradients(powerSGD_hook.powerSGD_hook, power), exact[1.0]),
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
