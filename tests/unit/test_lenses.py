import math

import pytest
import torch

from dltutorial.data import lenses


def tensors(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def places(n=200, seed=0):
    """Positions at 0.2 to 3 arcseconds from the lens."""
    generator = torch.Generator().manual_seed(seed)
    r = 0.2 + 2.8 * torch.rand(n, generator=generator, dtype=torch.float64)
    phi = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    return r * torch.cos(phi), r * torch.sin(phi)


def test_a_round_lens_bends_all_light_by_its_einstein_radius():
    x, y = places()
    a, b = lenses.deflection(x, y, *tensors(1.3, 1.0, 0.7))
    torch.testing.assert_close(torch.hypot(a, b), torch.full_like(x, 1.3), rtol=1e-6, atol=0)
    torch.testing.assert_close(a * y, b * x, rtol=1e-6, atol=1e-6)  # towards the centre


def test_an_elliptic_lens_bends_light_as_its_surface_density_demands():
    """The divergence of the deflection is twice the density κ, in units of the critical density. Its curl is 0."""
    x, y = (place.requires_grad_() for place in places())
    einstein_radius, axis_ratio, angle = tensors(1.2, 0.6, 0.4)
    a, b = lenses.deflection(x, y, einstein_radius, axis_ratio, angle)
    a_x, a_y = torch.autograd.grad(a.sum(), (x, y), retain_graph=True)
    b_x, b_y = torch.autograd.grad(b.sum(), (x, y), retain_graph=True)
    u, v = lenses.rotate(x, y, angle)
    density = 0.5 * einstein_radius * torch.sqrt(axis_ratio) / torch.sqrt(u * u + (axis_ratio * v) ** 2)
    torch.testing.assert_close((a_x + b_y) / 2, density.detach())
    torch.testing.assert_close(a_y, b_x)


def systems(source, labels=(1,)):
    """Round lenses without light of their own, before a round source (x, y, flux, half-light radius)."""
    n = len(labels)

    def galaxies(x, y, flux, radius, shape=(n,)):
        values = (x, y, flux, radius, 1.0, 1.0, 0.0)
        return lenses.Galaxies(*(torch.full(shape, value) for value in values))

    lens = lenses.Galaxies(*(torch.full((n,), v) for v in (0.0, 0.0, 0.0, 1.0, 4.0, 1.0, 0.3)))
    companions = galaxies(1.0, 0.5, 1.0, 0.3, (n, 3))
    return lenses.Systems(lens, torch.full((n,), 1.2), galaxies(*source), companions, torch.tensor(labels))


def test_a_source_on_the_axis_becomes_a_ring_of_the_einstein_radius():
    light_HW = lenses.render(systems((0.0, 0.0, 1.0, 0.02)), torch.arange(1), 512)[0]
    x, y = lenses.grid(512)
    radius = (torch.hypot(x, y) * light_HW).sum() / light_HW.sum()
    assert radius.item() == pytest.approx(1.2, rel=5e-3)
    brightest = light_HW == light_HW.max()
    assert torch.hypot(x, y).expand(512, 512)[brightest].mean().item() == pytest.approx(1.2, abs=0.02)


def test_a_small_source_off_the_axis_gains_the_light_that_theory_says():
    """Both images together: μ = 2 θ_E / β for β < θ_E."""
    light = lenses.render(systems((0.5, 0.0, 1.0, 0.02)), torch.arange(1), 1024).sum().item()
    assert light == pytest.approx(2 * 1.2 / 0.5, rel=0.02)


def test_a_sersic_profile_adds_up_to_its_flux_half_of_it_within_its_radius():
    side = torch.linspace(-30, 30, 1501, dtype=torch.float64)
    x, y = side[None, :], side[:, None]
    for index in (1.0, 2.0):
        light = lenses.sersic(x, y, *tensors(3.0, 1.0, index, 0.6, 0.5)) * (side[1] - side[0]) ** 2
        u, v = lenses.rotate(x, y, torch.tensor(0.5))
        inside = u * u / 0.6 + v * v * 0.6 < 1
        assert light.sum().item() == pytest.approx(3.0, rel=0.01)
        assert light[inside].sum().item() == pytest.approx(1.5, rel=0.015)


def test_companions_have_exactly_the_light_that_the_arcs_would_have():
    both = systems((0.3, 0.1, 50.0, 0.2), labels=(1, 0))
    light_B = lenses.render(both, torch.arange(2), 32).sum((1, 2))
    assert light_B[0].item() == pytest.approx(light_B[1].item(), rel=1e-5)


def test_the_blur_keeps_the_light_and_has_the_width_it_says():
    light = torch.zeros(1, 256, 256)
    light[0, 128, 128] = 1.0
    seen = lenses.blur(light)[0]
    assert seen.sum().item() == pytest.approx(1, abs=1e-4)
    width = (seen[128] > seen.max() / 2).sum().item() * lenses.FIELD_ARCSEC / 256
    assert width == pytest.approx(lenses.SEEING_ARCSEC, abs=2 * lenses.FIELD_ARCSEC / 256)


@pytest.fixture(scope="module")
def sample():
    return lenses.simulate(4000, seed=1, device="cpu", progress=False)


def best_cut(values_N, labels_N):
    """The accuracy of the best threshold on one number for each image, in either direction."""
    sorted_N = labels_N[values_N.argsort()].double()
    ones, zeros = sorted_N.cumsum(0), (1 - sorted_N).cumsum(0)
    right = (zeros + ones[-1] - ones) / len(labels_N)
    return max(right.max().item(), 1 - right.min().item())


def test_brightness_alone_tells_nothing(sample):
    images_NHW, labels_N = sample
    assert labels_N.float().mean() == 0.5
    light_N = torch.sinh(images_NHW).sum((1, 2))
    assert best_cut(light_N, labels_N) < 0.54
    assert best_cut(images_NHW.sum((1, 2)), labels_N) < 0.57  # stretched: faint arcs count a little more


def test_images_are_stretched_finite_and_made_by_the_seed_alone(sample):
    images_NHW, labels_N = sample
    assert images_NHW.shape == (4000, 32, 32) and images_NHW.dtype == torch.float32 and labels_N.dtype == torch.int64
    assert images_NHW.isfinite().all()
    corner = torch.sinh(images_NHW[:, :3, :3]) * lenses.STRETCH
    assert corner.std().item() == pytest.approx(1, abs=0.3)  # noise has unit variance where there is no galaxy
    again, other = (lenses.simulate(50, seed=seed, device="cpu", progress=False)[0] for seed in (1, 2))
    assert torch.equal(again, lenses.simulate(50, seed=1, device="cpu", progress=False)[0])
    assert not torch.equal(again, other)
