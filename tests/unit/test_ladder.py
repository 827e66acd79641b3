"""The loaders of chapter 03 give the same batches; a thread reads ahead; what each loader should cost."""

import dataclasses
import gc
import itertools
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from waiting import wait_for

from dltutorial.config import PRESETS
from dltutorial.data import augment, convert, formats, loader_ladder, loader_variants, loaders, store
from dltutorial.data.loader_ladder import RUNGS
from dltutorial.data.loader_variants import LOADERS
from dltutorial.data.loaders import prefetched


@pytest.fixture(scope="module")
def splits(tiny_data, tmp_path_factory):
    """The training split in the layouts of the rungs, with chunks that fit so short a year."""
    place, found = tmp_path_factory.mktemp("ladder"), {}
    for name in {rung.layout for rung in RUNGS}:
        layout = formats.Layout.of(name)
        if layout.chunk == 16:
            layout = dataclasses.replace(layout, chunk=5)
        folder = convert.convert(tiny_data, layout, place / name, splits=("train",), progress=False)
        found[name] = store.open_split(folder, "train")
    return found


def batches(split, name, n=9):
    """Copies: a buffered loader uses its memory again."""
    loader = loader_variants.make_loader(split, 4, name, seed=3, roll=True)
    try:
        return [(x.clone(), y.clone()) for x, y in itertools.islice(loader, n)]
    finally:
        loader.close()


def assert_same(some, others, atol=0.0):
    for pair, other in zip(some, others, strict=True):
        for a, b in zip(pair, other, strict=True):
            assert a.dtype == b.dtype == torch.float32
            torch.testing.assert_close(a, b, rtol=0, atol=atol)


def plain(split, n=9, seed=3):
    return list(itertools.islice(loaders.endless_batches(loaders.Pairs(split), 4, seed=seed, roll=True), n))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.cause)
def test_every_rung_gives_the_same_batches(rung, splits):
    atol = 0 if LOADERS[rung.loader].float32_in_place else 1e-5
    assert_same(batches(splits[rung.layout], rung.loader), plain(splits["npy"]), atol)


def test_so_does_a_batched_loader_with_a_thread(splits):
    assert_same(batches(splits["npy"], "prefetch"), plain(splits["npy"]))


# Augmentation


@pytest.mark.parametrize("shift", [0, 1, 7, 23])
def test_the_fast_versions_equal_the_naive_one(shift):
    rng = np.random.default_rng(shift)
    raw, means, stds = rng.normal(3, 2, (2, 3, 4, 24)), rng.normal(size=(1, 3, 1, 1)), np.full((1, 3, 1, 1), 2.5)
    raw, means, stds = (x.astype(np.float32) for x in (raw, means, stds))
    wanted = augment.naive_augment(raw, shift, means, stds)
    assert np.array_equal(wanted, np.roll((raw.astype(np.float64) - means) / stds, shift, -1).astype(np.float32))
    tensors = [torch.from_numpy(x) for x in (raw, means, stds)]
    out = torch.empty(2, 3, 4, 24)
    augment.augment_into(out, tensors[0], shift, *tensors[1:])
    np.testing.assert_allclose(out, wanted, atol=1e-6)
    block = torch.stack([tensors[0], tensors[0]], 1)
    got = augment.augment_batch(block, torch.tensor([shift, 0]), *tensors[1:])
    assert torch.equal(got[:, 0], out)
    np.testing.assert_allclose(got[:, 1], augment.naive_augment(raw, 0, means, stds), atol=1e-6)


# Prefetching


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def wait_until_ended():
    wait_for(lambda: not threads(), within_s=90)


def test_prefetching_preserves_the_order_and_ends():
    assert list(prefetched(iter([0, None, "", 3]), 2)) == [0, None, "", 3]
    wait_until_ended()


def test_prefetching_reads_no_more_batches_ahead_than_its_queue_holds():
    made = []
    items = prefetched((made.append(i) or i for i in range(100)), 3)
    assert next(items) == 0
    wait_for(lambda: len(made) >= 5)
    time.sleep(0.1)
    assert len(made) == 5  # one in use, three in the queue, one in the making
    items.close()
    wait_until_ended()


def test_an_error_of_the_source_is_raised_after_the_items_before_it():
    def failing():
        yield from range(3)
        raise OSError("gone")

    items = prefetched(failing(), 2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="gone"):
        next(items)
    wait_until_ended()


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_an_early_end_closes_the_source_and_ends_the_thread(how):
    closed = threading.Event()

    def source():
        try:
            yield from range(1000)
        finally:
            closed.set()

    items = prefetched(source(), 2)
    next(items)
    if how == "closed":
        items.close()
    del items
    gc.collect()
    assert closed.wait(90)
    wait_until_ended()


def test_a_closed_loader_leaves_no_thread(splits):
    batches(splits["npy"], "best", 2)
    wait_until_ended()


# Costs


def test_more_bytes_cost_more_and_each_rung_costs_less(splits):
    figures = loader_ladder.Costs(open_s=3e-4, inflate_bytes_per_s=3e8, moved_bytes_per_s=2e10)
    on_gpu, on_cpu = (
        [
            figures.pair_s(formats.open_year(splits[rung.layout].files[0]), LOADERS[rung.loader], device)
            for rung in loader_ladder.rungs(device)
        ]
        for device in ("cuda", "cpu")
    )
    assert on_gpu == sorted(on_gpu, reverse=True)
    assert on_gpu[-1] == pytest.approx(8 * 2 * 3 * 16 * 24 / 2e10)
    assert on_cpu[:-2] == on_gpu[:-2]
    assert on_cpu[-1] == on_cpu[-3] < on_cpu[-2]  # where the device is the CPU, its work counts


def test_every_rung_ends_in_batches_that_are_normalised_and_shifted(splits):
    for device in ("cpu", "cuda"):  # the loaders of both, here
        for rung in loader_ladder.rungs(device):
            loader = loader_ladder.whole_loader(splits[rung.layout], 4, rung.loader, "cpu")()
            (x_BCHW, y_BCHW), wanted = next(loader), plain(splits["npy"], 1, seed=0)
            assert_same([(x_BCHW, y_BCHW)], wanted, atol=1e-5)
            loader.close()


def test_the_figures_are_measured_and_the_upper_limit_copies_what_loaders_read(splits):
    figures = loader_ladder.measure_costs(splits["hdf5-chunk1-gzip4"], splits["npy"], 4, repeats=1)
    assert min(vars(figures).values()) > 0
    raw = next(loader_ladder.copies(splits["npy"], 4, seed=3))
    host = next(loader_variants.host_batches(splits["npy"], 4, "device", seed=3))
    assert np.array_equal(raw, host.both_2BCHW.numpy())


def test_rates_take_turns_and_close_what_they_started():
    started, closed = [], []

    def loader(name):
        started.append(name)
        try:
            while True:
                time.sleep(0.001)
                yield name
        finally:
            closed.append(name)

    found = loader_ladder.rates({n: (lambda n=n: loader(n)) for n in "ab"}, 4, rounds=2, phase_s=0.01)
    assert started == closed == ["a", "b", "a", "b"]
    assert all(len(values) == 2 and max(values) < 4000 for values in found.values())


def test_the_ladders_data_are_of_every_preset(monkeypatch):
    for preset in PRESETS.values():
        sizes = loader_ladder.sizes(preset)
        assert sizes.snapshots >= 16  # the naive layout's chunk
        assert 4 * sizes.n_channels * sizes.n_lat * sizes.n_lon >= 500_000
    assert {rung.layout for rung in RUNGS} <= set(loader_ladder.LAYOUTS)
    assert [formats.Layout.of(name).name for name in loader_ladder.LAYOUTS] == list(loader_ladder.LAYOUTS)


@pytest.mark.parametrize("config", ["prefetch", "best"])
def test_a_program_that_leaves_its_loader_open_ends(config, tiny_data):
    code = (
        "import sys; from pathlib import Path; from dltutorial.data import loader_variants, store\n"
        "batches = loader_variants.make_loader(store.open_split(Path(sys.argv[1])), 2, sys.argv[2]); next(batches)"
    )
    command = [sys.executable, "-c", code, str(tiny_data), config]
    ended = subprocess.run(command, timeout=250, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
