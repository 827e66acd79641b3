"""The trainer on one GPU. Every precision learns, and a resumed run continues from its checkpoint."""

import json

import pytest

from dltutorial import train

pytestmark = pytest.mark.gpu
WORDS = ["--preset", "smoke", "--steps", "40", "--checkpoint-every", "20", "--track"]


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize("words", [[], ["--precision", "tf32"], ["--precision", "bf16"], ["--compile"]])
def test_a_run_learns_and_can_be_resumed(words, tmp_path):
    assert train.main([*WORDS, *words]) == 0
    (run,) = (tmp_path / "runs").glob("train-*")
    first = losses(run)
    assert len(first) == 40
    assert first[40] < 0.8 * first[1]
    (run / "weights.pt").unlink()
    (run / "checkpoints" / "step-00000040.pt").unlink()
    assert train.main([*WORDS, *words, "--resume", str(run)]) == 0
    assert losses(run)[40] == pytest.approx(first[40], rel=0.02)
