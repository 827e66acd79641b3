import pytest

from dltutorial.config import PRESETS, preset


def test_gpu_preset_is_the_published_model():
    gpu = PRESETS["gpu"]
    assert (gpu.n_lat, gpu.n_lon, gpu.n_channels) == (360, 720, 20)
    assert (gpu.patch, gpu.dim, gpu.depth, gpu.heads, gpu.global_batch_size) == (8, 384, 12, 8, 16)
    assert gpu.n_tokens == 45 * 90


@pytest.mark.parametrize("name", PRESETS)
def test_the_sizes_of_a_preset_fit_together(name):
    sizes = PRESETS[name]
    assert sizes.name == name
    assert sizes.n_lat % sizes.patch == sizes.n_lon % sizes.patch == 0
    assert sizes.dim % sizes.heads == 0


def test_environment_overrides_auto_but_not_a_named_preset(monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "laptop")
    assert preset("auto").name == "laptop"
    assert preset("gpu").name == "gpu"
