"""What loaders do with a CUDA device: pinned memory, copies beside the step, augmentation on the device."""

import itertools

import numpy as np
import pytest
import torch

from dltutorial.config import PRESETS
from dltutorial.data import convert, loader_variants, store, weather
from dltutorial.data.loader_variants import LOADERS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def split():
    source = weather.ensure(PRESETS["smoke"], progress=False)
    return store.open_split(convert.convert(source, "npy", splits=("train",), progress=False))


def batches(split, config, device, n=12):
    loader = loader_variants.make_loader(split, 8, config, seed=3, roll=True, device=device)
    try:
        return [(x.clone(), y.clone()) for x, y in itertools.islice(loader, n)]
    finally:
        loader.close()


def test_a_batched_loader_reads_into_pinned_memory(split):
    for config in ("batched", "best"):
        host = loader_variants.host_batches(split, 8, config, pin=True)
        assert next(host).both_2BCHW.is_pinned()
        host.close()


@pytest.mark.parametrize("config", LOADERS)
def test_batches_on_the_gpu_are_those_of_the_cpu(config, split):
    wanted, got = batches(split, "float32", "cpu"), batches(split, config, "cuda")
    for (x0, y0), (x1, y1) in zip(wanted, got, strict=True):
        assert x1.is_cuda
        assert x1.dtype == torch.float32
        torch.testing.assert_close(x1.cpu(), x0, rtol=0, atol=1e-5)
        torch.testing.assert_close(y1.cpu(), y0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", ["batched", "device", "prefetch", "best"])
def test_memory_that_is_used_again_never_changes_a_batch_in_use(config, split):
    """A busy device lags far behind the host; the host must not fill a block whose copy is still to come."""
    wanted = [x.double().sum().item() for x, _ in batches(split, "float32", "cpu", n=30)]
    weights = torch.randn(4096, 4096, device="cuda")
    sums, loader = [], loader_variants.make_loader(split, 8, config, seed=3, roll=True, device="cuda")
    for x_BCHW, _ in itertools.islice(loader, 30):
        for _ in range(4):
            weights = torch.tanh(weights @ weights / 64)  # the step before: the device is behind
        sums.append(x_BCHW.double().sum())
    loader.close()
    np.testing.assert_allclose(torch.stack(sums).cpu(), wanted, rtol=1e-4, atol=1.0)
