import dataclasses

import pytest

from dltutorial.config import PRESETS
from dltutorial.course.bench_precision import precision
from dltutorial.course.bench_rows import Options, table
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
    found = {row.what: row for row in precision(Options(TINY, 2))}
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


def test_loss_and_bytes_stand_beside_the_times(rows):
    fp32, bf16 = (rows[f"ViT update, {name}"].more for name in ("fp32", "bf16"))
    assert float(bf16["loss after 30"]) == pytest.approx(float(fp32["loss after 30"]), rel=0.02)
    assert "kept for backward" in str(table(list(rows.values())))
