import clouds
import pytest

from dltutorial.config import PRESETS
from dltutorial.course import benches
from dltutorial.course.bench import table
from dltutorial.course.benches import convergence
from dltutorial.data import surveys

SIZES = (4, 16, 64, 256)


@pytest.fixture
def small(monkeypatch, one_thread):
    """Clouds that need longer than a few updates, instead of lenses."""
    made = clouds.survey(n=600, n_valid=200, n_features=20, n_classes=2, apart=0.8)
    monkeypatch.setattr(surveys, "lenses", lambda *args, **options: made)
    monkeypatch.setattr(benches, "SMOKE_BATCHES", SIZES)


def test_each_batch_size_has_a_row_with_five_seeds_and_the_curve_beside_it(small):
    rows = {row.what: row for row in convergence(PRESETS["smoke"], 1)}
    sgd = [f"sgd: batch {size}" for size in SIZES]
    assert list(rows)[:6] == [*sgd, "sgd: s_min", "sgd: b_crit"]
    assert list(rows)[6].startswith("adam") and len(rows) == 12
    for name in sgd:
        assert len(rows[name].samples) == 5 and rows[name].more["seeds"] == "5 of 5"
        assert 0.3 < rows[name].median / rows[name].predicted < 3
    assert "s_min" in str(table(list(rows.values())))
