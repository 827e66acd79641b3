"""A training that is killed again and again ends with the same weights as one that was never stopped.

``DLTUTORIAL_KILLS`` sets another number of kills. The moments are random, and a failure prints the seed.
"""

import os
import random
import time

import pytest
import torch
from starting import Training

from dltutorial.config import preset
from dltutorial.data import weather

KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 100))
WORDS = ["--steps", 200]


@pytest.mark.timeout(3600)
def test_killed_a_hundred_times_a_run_ends_the_same(tmp_path):
    data = weather.ensure(preset("smoke"))
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    delays_s = random.Random(seed)
    (tmp_path / "whole").mkdir()
    whole = Training(tmp_path / "whole", data, *WORDS)
    start_s = time.monotonic()
    assert whole.wait() == [0]
    duration_s = time.monotonic() - start_s
    expected = torch.load(whole.folder() / "weights.pt", weights_only=True)
    kills = 0
    run = None
    while kills < KILLS:
        training = Training(tmp_path, data, *WORDS, *(["--resume", run] if run else []))
        run = training.folder()
        time.sleep(delays_s.uniform(0, duration_s / 2))
        training.processes[0].kill()
        (status,) = training.wait()
        kills += status != 0
        if status == 0:
            weights = torch.load(run / "weights.pt", weights_only=True)
            assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
            run = None
