"""Wrong answers to the second part of exercise 09, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def train(data, make_model, epochs, batch, pieces):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch // dist.get_world_size() // pieces, sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, 1):
            last = number % pieces == 0
            with nullcontext() if last else model.no_sync():
                (F.mse_loss(model(x), y) / pieces).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return model.module.state_dict()
"""
_with = functools.partial(altered, RIGHT)
_FORWARD_OUTSIDE = """            loss = F.mse_loss(model(x), y) / pieces
            with nullcontext() if last else model.no_sync():
                loss.backward()
"""
_INSIDE = RIGHT[RIGHT.index("            with nullcontext") : RIGHT.index("            if last:")]

WRONG = [
    ("no sampler", _with(("sampler=sampler)", "shuffle=True)")), "Every rank reads everything"),
    ("forgets set_epoch", _with(("        sampler.set_epoch(epoch)\n", "")), "sampler.set_epoch(epoch)"),
    ("set_epoch after the loop has begun",
     _with(("        sampler.set_epoch(epoch)\n        for number, (x, y) in enumerate(loader, 1):",
            "        batches = iter(loader)\n        sampler.set_epoch(epoch)\n"
            "        for number, (x, y) in enumerate(batches, 1):")), "before the loop over the loader"),
    ("saves through the wrapper", _with(("model.module.state_dict()", "model.state_dict()")), "begin with module."),
    ("no DDP", _with(("DistributedDataParallel(make_model())", "make_model()"),
                     ("model.module", "model"), ("nullcontext() if last else model.no_sync()", "nullcontext()")),
     "wrap the model in DistributedDataParallel"),
    ("every piece sends", _with(("nullcontext() if last else model.no_sync()", "nullcontext()")), "All pieces send"),
    ("the forward pass outside of no_sync", _with((_INSIDE, _FORWARD_OUTSIDE)), "has to be inside, too"),
    ("a sum of pieces", _with(("(F.mse_loss(model(x), y) / pieces)", "F.mse_loss(model(x), y)")), "divide each one's"),
    ("batch is each rank's", _with(("batch // dist.get_world_size() // pieces", "batch // pieces")),
     "divide it by the ranks"),
    ("each piece is a batch", _with(("batch // dist.get_world_size() // pieces", "batch // dist.get_world_size()")),
     "divide it by the ranks, and by the pieces"),
    ("never zeroes", _with(("                optimizer.zero_grad()\n", "")), "zero_grad()"),
    ("another seed on each rank", _with(("DistributedSampler(data)", "DistributedSampler(data, seed=dist.get_rank())")),
     "one common order"),
    ("calls the model, not its wrapper", _with(("F.mse_loss(model(x), y)", "F.mse_loss(model.module(x), y)")),
     "call the wrapper"),
]  # fmt: skip
