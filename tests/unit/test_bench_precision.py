import dataclasses

import pytest

from dltutorial.config import PRESETS
from dltutorial.course.benches import precision
from dltutorial.profile import peaks
from dltutorial.profile.probes import Figure

TINY = dataclasses.replace(PRESETS["smoke"], n_lat=16, n_lon=32, dim=16, depth=1, heads=2, global_batch_size=2)


def peaks_of(**flops_per_s):
    matmul = {name: value and Figure(value, value, 3, "FLOP/s", "planted") for name, value in flops_per_s.items()}
    memory = Figure(1e10, 1e10, 3, "bytes/s", "planted")
    return peaks.Peaks("a machine", "cpu", 1, "2026-01-01T00:00:00+00:00", 0.0, {}, matmul, memory, {})


@pytest.fixture
def rows(monkeypatch, one_thread, capsys):
    monkeypatch.setattr(peaks, "measure", lambda: peaks_of(fp32=1e11, tf32=None, bf16=2e11, fp16=1e9))
    found = {row.what: row for row in precision(TINY, 2)}
    assert "fp16 left out: its products take 100 × as long as float32's here" in capsys.readouterr().out
    return found


def test_every_precision_has_its_rows(rows):
    assert list(rows) == [
        "product 1024 × 1024, fp32",
        "product 1024 × 1024, bf16",
        "ViT update, fp32",
        "ViT update, bf16",
    ]


def test_predictions_come_from_the_peaks(rows):
    flop = 2 * 1024**3
    assert rows["product 1024 × 1024, bf16"].predicted == pytest.approx(flop / 2e11)
    whole_s, products_s = min(rows["ViT update, fp32"].samples), rows["ViT update, fp32"].predicted
    assert rows["ViT update, bf16"].predicted == pytest.approx(whole_s - products_s / 2)
