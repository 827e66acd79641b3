"""What it means that two training runs are the same."""

import json

import torch

from dltutorial.engine import run_folder


def records(folder):
    """What a run recorded, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", "loss", "learning_rate", "scores")} for line in lines]


def assert_same_run(one, other):
    """Both are finished, with the same records and the same weights; the other has left no half-written file."""
    assert (one / "status.json").read_text() == (other / "status.json").read_text()
    assert run_folder.run_status(one) == run_folder.run_status(other) == "finished"
    assert records(one) == records(other)
    for a, b in zip(*(torch.load(place / "weights.pt").values() for place in (one, other)), strict=True):
        assert torch.equal(a, b)
    assert not list(other.rglob("*.partial"))
