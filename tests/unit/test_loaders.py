"""Pairs of snapshots, and the default loader. The same seed gives the same batches for any number of workers."""

import itertools
import os
import pickle
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dltutorial.data import loader_workers, sampling, store
from dltutorial.data.loaders import SnapshotPairs, endless_batches
from dltutorial.errors import DataError


@pytest.fixture
def pairs(tiny_data):
    return SnapshotPairs(store.open_split(tiny_data, "train"))


def batches(pairs, size, n, **options):
    return list(itertools.islice(endless_batches(pairs, size, **options), n))


def test_samples_are_normalised_neighbours_of_one_year(pairs, tiny_data):
    years = [h5py.File(tiny_data / "train" / f"{year}.h5")["fields"][:] for year in (1979, 1980)]
    means, stds = (np.load(tiny_data / "stats" / f"global_{name}.npy")[0] for name in ("means", "stds"))
    expected = [(year[t], year[t + 1]) for year in years for t in range(len(year) - 1)]
    assert len(pairs) == len(expected) == 18
    for (x_CHW, y_CHW), (now, later) in zip((pairs[i] for i in range(18)), expected, strict=True):
        assert x_CHW.dtype == torch.float32
        np.testing.assert_allclose(x_CHW, (now - means) / stds, rtol=1e-6)
        np.testing.assert_allclose(y_CHW, (later - means) / stds, rtol=1e-6)


@pytest.mark.parametrize("index", [-1, 18])
def test_a_sample_beyond_the_data_is_an_index_error(pairs, index):
    with pytest.raises(IndexError, match=f"^sample {index} does not exist; the indices are 0 to 17$"):
        pairs[index]


def test_samples_travel_to_another_process_without_their_files(pairs):
    x_CHW, _ = pairs[3]
    copied = pickle.loads(pickle.dumps(pairs))
    assert copied._open_years == {}
    assert torch.equal(copied[3][0], x_CHW)


@pytest.mark.parametrize("random_shift", [False, True])
def test_the_same_seed_gives_the_same_batches_for_any_number_of_workers(pairs, random_shift):
    alone = batches(pairs, 8, 5, seed=3, random_shift=random_shift)
    with_workers = batches(pairs, 8, 5, seed=3, random_shift=random_shift, num_workers=2)
    other = batches(pairs, 8, 5, seed=4, random_shift=random_shift)
    for (x0, y0), (x1, y1) in zip(alone, with_workers, strict=True):
        assert torch.equal(x0, x1)
        assert torch.equal(y0, y1)
    assert not torch.equal(alone[0][0], other[0][0])


def test_a_batch_holds_its_samples_shifted_as_the_sampler_chose(pairs):
    x_BCHW, y_BCHW = batches(pairs, 18, 1, seed=3, random_shift=True)[0]
    samples = next(sampling.endless_batch_sampler(18, 18, seed=3, max_shift=23))
    for place, (index, shift) in enumerate(samples):
        x_CHW, y_CHW = pairs[index]
        assert torch.equal(x_BCHW[place], torch.roll(x_CHW, shift, -1))
        assert torch.equal(y_BCHW[place], torch.roll(y_CHW, shift, -1))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_is_one_contiguous_block_of_memory(pairs, num_workers):
    for x, y in batches(pairs, 8, 2, random_shift=True, num_workers=num_workers):
        assert x.is_contiguous() and y.is_contiguous()
        assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_in_pinned_memory_if_asked(pairs, num_workers):
    plain, pinned = (
        batches(pairs, 8, 4, seed=3, random_shift=True, num_workers=num_workers, pin_memory=pin)
        for pin in (False, True)
    )
    for (x0, y0), (x1, y1) in zip(plain, pinned, strict=True):
        assert x1.is_pinned() and y1.is_pinned() and not x0.is_pinned()
        assert torch.equal(x0, x1) and torch.equal(y0, y1)


def test_batches_do_not_depend_on_the_global_generator_and_do_not_use_it(pairs):
    torch.manual_seed(0)
    first = batches(pairs, 8, 2, seed=3, random_shift=True)
    assert torch.initial_seed() == 0 and torch.equal(torch.rand(1), torch.rand(1, generator=torch.manual_seed(0)))
    torch.manual_seed(1)
    assert torch.equal(first[1][0], batches(pairs, 8, 2, seed=3, random_shift=True)[1][0])


# Workers


def read_with_workers(data, batches):
    """All batches of a data set that two processes read as ``endless_batches`` lets them."""
    loader = DataLoader(data, batch_sampler=batches, num_workers=2, worker_init_fn=loader_workers.ignore_stop_signals)
    return list(loader_workers.iterate_then_end_workers(loader))


class Dies(Dataset):
    """A sample whose reading ends the process, as when memory runs out."""

    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)


def test_a_worker_that_dies_is_one_line():
    with pytest.raises(
        DataError, match=r"DataLoader worker .*; lower the number of workers or the batch size"
    ) as caught:
        read_with_workers(Dies(), [[0, 1], [2, 3], [4, 5]])
    assert "\n" not in str(caught.value)


class Interrupted(Dataset):
    """Each reading is interrupted by the signals that Slurm, torchrun or Ctrl-C send to all processes of a run."""

    def __getitem__(self, index):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        return torch.tensor(index)


def test_workers_survive_the_signals_that_stop_a_run():
    assert torch.cat(read_with_workers(Interrupted(), [[0, 1], [2, 3]])).tolist() == [0, 1, 2, 3]


def test_a_program_that_leaves_a_loader_open_ends_with_its_workers(tiny_data):
    program = (
        "import sys; from pathlib import Path; from dltutorial.data import loaders, store\n"
        "pairs = loaders.SnapshotPairs(store.open_split(Path(sys.argv[1])))\n"
        "batches = loaders.endless_batches(pairs, 2, num_workers=2)\nnext(batches)\n"
    )
    subprocess.run([sys.executable, "-c", program, tiny_data], check=True, timeout=60)
