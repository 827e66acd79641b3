"""Wrong answers to the second exercise of chapter 03: (label, source, part of the hint expected)."""

RIGHT = """
import torch
from torch.utils.data import DataLoader

def dataloader(dataset, batch_size, workers):
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=3 if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("not shuffled", _with("shuffle=True", "shuffle=False"), "wants them shuffled"),
    ("the rest as a small batch", _with("drop_last=True", "drop_last=False"), "leave them out"),
    ("no workers",
     _with("num_workers=workers", "num_workers=0").replace("workers > 0", "False").replace("3 if workers else ", ""),
     "hand it on"),
    ("new workers in every epoch", _with("persistent_workers=workers > 0", "persistent_workers=False"), "New workers"),
    ("persistent without workers", _with("workers > 0", "True"), None),
    ("batches ahead of nobody", _with("3 if workers else None", "3"), None),
    ("the usual two batches ahead", _with("        prefetch_factor=3 if workers else None,\n", ""), "prefetch_factor"),
    ("drawn with replacement",
     _with("shuffle=True", "sampler=torch.utils.data.RandomSampler(dataset, replacement=True)"), "with replacement"),
    ("one order for all epochs", _with("shuffle=True", "sampler=torch.randperm(len(dataset)).tolist()"),
     "seed it again"),
    ("single samples", _with("batch_size=batch_size", "batch_size=1"), "batch size"),
    ("batches, no loader", _with("return DataLoader(", "return iter(DataLoader(").replace("    )\n", "    ))\n"),
     "DataLoader itself"),
    ("pinned the wrong way round", _with("torch.cuda.is_available()", "not torch.cuda.is_available()"), "only there"),
]  # fmt: skip
