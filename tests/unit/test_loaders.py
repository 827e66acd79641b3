import itertools
import pickle
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from dltutorial.data import store
from dltutorial.data.augment import rolled
from dltutorial.data.loaders import Pairs, endless_batches
from dltutorial.errors import DataError


@pytest.fixture
def pairs(tiny_data):
    return Pairs(store.open_split(tiny_data, "train"))


class Numbered(torch.utils.data.Dataset):
    """Pair ``i`` is (i, −i), so that a batch tells which pairs are in it."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.full((1, 2, 4), float(index)), torch.full((1, 2, 4), -float(index))


def batches(dataset, size, n, **options):
    return list(itertools.islice(endless_batches(dataset, size, **options), n))


def test_pairs_are_normalised_neighbours_of_one_year(pairs, tiny_data):
    years = [h5py.File(tiny_data / "train" / f"{year}.h5")["fields"][:] for year in (1979, 1980)]
    means, stds = (np.load(tiny_data / "stats" / f"global_{name}.npy")[0] for name in ("means", "stds"))
    expected = [(year[t], year[t + 1]) for year in years for t in range(len(year) - 1)]
    assert len(pairs) == len(expected) == 18
    for (x_CHW, y_CHW), (now, later) in zip((pairs[i] for i in range(18)), expected, strict=True):
        assert x_CHW.dtype == torch.float32
        np.testing.assert_allclose(x_CHW, (now - means) / stds, rtol=1e-6)
        np.testing.assert_allclose(y_CHW, (later - means) / stds, rtol=1e-6)


@pytest.mark.parametrize("index", [-1, 18])
def test_no_pair_beyond_the_ends(pairs, index):
    with pytest.raises(IndexError):
        pairs[index]


def test_pairs_travel_to_another_process_without_their_files(pairs):
    x_CHW, _ = pairs[3]
    copied = pickle.loads(pickle.dumps(pairs))
    assert copied._open == {}
    assert torch.equal(copied[3][0], x_CHW)


def test_every_epoch_takes_each_pair_at_most_once_in_a_new_order():
    seen = [x[:, 0, 0, 0].int().tolist() for x, _ in batches(Numbered(10), 4, 6)]
    epochs = [seen[i] + seen[i + 1] for i in (0, 2, 4)]  # 10 pairs make 2 whole batches of 4
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_over_many_epochs_every_pair_comes():
    seen = {int(i) for x, _ in batches(Numbered(10), 4, 40) for i in x[:, 0, 0, 0]}
    assert seen == set(range(10))


def test_x_and_y_stay_together():
    for x, y in batches(Numbered(10), 4, 5, roll=True):
        assert torch.equal(x, -y)


@pytest.mark.parametrize("roll", [False, True])
def test_same_seed_same_batches_whatever_the_workers(pairs, roll):
    alone, again, helped, other = (
        batches(pairs, 8, 5, seed=seed, roll=roll, workers=workers)
        for seed, workers in ((3, 0), (3, 0), (3, 2), (4, 0))
    )
    for (x0, y0), (x1, y1), (x2, y2) in zip(alone, again, helped, strict=True):
        assert torch.equal(x0, x1)
        assert torch.equal(y0, y1)
        assert torch.equal(x0, x2)
        assert torch.equal(y0, y2)
    assert not torch.equal(alone[0][0], other[0][0])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_one_block(pairs, workers):
    for x, y in batches(pairs, 8, 2, roll=True, workers=workers):
        assert x.is_contiguous() and y.is_contiguous()
        assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_a_subclass_gives_its_own_samples(pairs):
    class Doubled(Pairs):
        def __getitem__(self, index):
            return tuple(2 * x for x in super().__getitem__(index))

    for doubled, plain in zip(batches(Doubled(pairs.split), 8, 2), batches(pairs, 8, 2), strict=True):
        assert torch.equal(doubled[0], 2 * plain[0])


def test_batches_do_not_depend_on_the_global_seed(pairs):
    torch.manual_seed(0)
    first = batches(pairs, 8, 2, seed=3, roll=True)
    torch.manual_seed(1)
    torch.rand(5)
    assert torch.equal(first[1][0], batches(pairs, 8, 2, seed=3, roll=True)[1][0])


def test_roll_is_torch_roll_of_each_sample():
    x, y = torch.randn(2, 16, 3, 4, 24)
    shifts = torch.arange(16) * 5 % 24
    rolled_x, rolled_y = rolled(torch.stack([x, y]), shifts)
    for sample, shift in enumerate(shifts.tolist()):
        assert torch.equal(torch.roll(x[sample], shift, -1), rolled_x[sample])
        assert torch.equal(torch.roll(y[sample], shift, -1), rolled_y[sample])


def test_too_few_pairs_for_a_batch_are_named():
    with pytest.raises(DataError, match="batch of 16 needs more than the 10 samples"):
        next(endless_batches(Numbered(10), 16))


def test_exactly_one_batch_is_enough():
    assert len(batches(Numbered(4), 4, 3)) == 3


def test_a_program_that_leaves_a_loader_open_ends_with_its_workers():
    program = (
        "from torch.utils.data import StackDataset\nimport torch\nfrom dltutorial.data import workers\n"
        "data = StackDataset(torch.zeros(4, 1))\n"
        "batches = workers.worker_batches(data, iter([[0], [1], [2], [3]] * 10), 2)\nnext(batches)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
