import pytest

from dltutorial.comm import mpi, stopwatch
from dltutorial.comm.cost import Prices, counts
from dltutorial.config import PRESETS
from dltutorial.course import benches
from dltutorial.course.bench import table
from dltutorial.profile.timing import Timing

PRICES = Prices(1e-4, 3e-10, 1e-10, lanes=1)


def planted(names, p, sizes, repeats, node_size, backend="gloo", timeout_s=0):
    """What a machine with these prices would take, and twice that in all turns but one."""
    found = {}
    for name in names:
        for n in sizes:
            least_s = PRICES.seconds(counts("ring" if name == "backend" else name, p, n, node_size))
            found[name, n] = Timing((2 * least_s, least_s, 2 * least_s))
    return found


@pytest.fixture
def rows(monkeypatch, one_thread, capsys):
    monkeypatch.setattr(stopwatch, "clock", planted)
    monkeypatch.setattr(mpi.shutil, "which", lambda name, path: None)
    monkeypatch.setattr(benches.machine, "device", lambda: "cpu")
    found = list(benches.collectives(PRESETS["smoke"], 1))
    said = capsys.readouterr().out
    assert said.splitlines() == [
        "NCCL: not available here (a rank needs a GPU of its own; 0 GPUs)",
        "MPI: not available here (no mpiexec; install both: .venv/bin/pip install -e '.[mpi]')",
    ]
    return {row.what: row for row in found}


def test_there_is_a_row_for_every_size_rank_and_algorithm(rows):
    assert len(rows) == 2 * 8 * 10
    assert str(table(list(rows.values()))).count("\n") == len(rows) + 1


def test_bandwidths_come_from_the_least_time(rows):
    row = rows["gloo, 4 ranks, 65,536 KiB, ring"]
    algbw = 2**26 / min(row.samples) / 1e9
    assert float(row.more["algbw, GB/s"]) == pytest.approx(algbw, abs=1e-3)
    assert float(row.more["busbw, GB/s"]) == pytest.approx(1.5 * algbw, abs=1e-3)


def test_two_ranks_predict_four(rows):
    assert rows["gloo, 2 ranks, 1 KiB, tree"].predicted is None
    assert rows["gloo, 4 ranks, 1 KiB, backend"].predicted is None
    for name in stopwatch.OURS:
        assert rows[f"gloo, 4 ranks, 16,384 KiB, {name}"].more["least / predicted"] == "1.00"
