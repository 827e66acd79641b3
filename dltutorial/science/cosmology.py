"""Simulate the distribution of matter in boxes of a universe with given cosmological parameters.

A box is a lognormal field (Coles and Jones 1991): a Gaussian field with the linear power spectrum of Bardeen et al.
1986 (BBKS), its exponential, and particles drawn from it.

Legend: B boxes, C redshifts, D × H × W cells of a box, P parameters. Lengths are in Mpc/h.
"""

import math

import torch
from torch import Tensor

# The middle of each parameter's range, and the distance from there to its ends.
PARAMETERS = {
    "omegaM": (0.3, 0.1),
    "sigma8": (0.8, 0.2),
    "ns": (0.96, 0.16),
    "H0": (70.0, 10.0),
}
SCALE_FACTORS = (1.0, 0.8, 0.6, 0.45)  # 1 / (1 + redshift)
CELL_MPC_H = 8.0
PARTICLES = 4.0  # per cell, on average
MAX_COUNT = 2**15 - 1  # of int16


def spectrum(k: Tensor, index: Tensor, shape: Tensor) -> Tensor:
    """Return the linear power spectrum without normalisation (Bardeen et al. 1986, eq. G3).

    Args:
        k: Wave numbers in h/Mpc.
        index: The spectral index.
        shape: Ω_m h.
    """
    q = k / shape
    logarithm = torch.log1p(2.34 * q) / (2.34 * q)
    polynomial = 1 + 3.89 * q
    polynomial = polynomial + (16.1 * q) ** 2
    polynomial = polynomial + (5.46 * q) ** 3
    polynomial = polynomial + (6.71 * q) ** 4
    transfer = logarithm * polynomial**-0.25
    return k**index * transfer**2


def growth(omega: Tensor, a: float) -> Tensor:
    """Return how large structures are at scale factor a relative to today (Carroll et al. 1992, eq. 29)."""
    return unscaled_growth(omega, a) / unscaled_growth(omega, 1.0)


def unscaled_growth(omega: Tensor, a: float) -> Tensor:
    """Return the growth factor of a flat universe without normalisation."""
    matter = omega / (omega + (1 - omega) * a**3)
    dark_energy = 1 - matter
    correction = (1 + matter / 2) * (1 + dark_energy / 70)
    denominator = matter ** (4 / 7) - dark_energy + correction
    return 2.5 * a * matter / denominator


def variance_in_spheres(index: Tensor, shape: Tensor, radius: float = 8.0) -> Tensor:
    """Return the variance of the density in spheres of 8 Mpc/h, which defines sigma8, without normalisation."""
    k = torch.logspace(-3, 1, 400)
    kr = radius * k
    window = 3 * (torch.sin(kr) - kr * torch.cos(kr)) / kr**3
    phase_space = k**3 / (2 * math.pi**2)
    of_log_k = spectrum(k, index, shape) * window**2 * phase_space
    log_k = k.log().expand_as(of_log_k)
    return torch.trapezoid(of_log_k, log_k, dim=-1)[..., None]


def wave_numbers(side: int) -> Tensor:
    """Return the size of k in h/Mpc on the grid of a real Fourier transform, (side, side, side // 2 + 1).

    The mean has k = 1.
    """
    along_edge = torch.fft.fftfreq(side, CELL_MPC_H)
    depth = along_edge[:, None, None]
    height = along_edge[:, None]
    width = torch.fft.rfftfreq(side, CELL_MPC_H)
    k = 2 * math.pi * torch.sqrt(depth**2 + height**2 + width**2)
    k[0, 0, 0] = 1
    return k


def simulate(n: int, side: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Simulate boxes of particle counts.

    Returns:
        The counts (n, 4, side, side, side), today first, and the parameters (n, 4), each scaled to -1 … 1.
    """
    generator = torch.Generator().manual_seed(seed)
    unit_BP = 2 * torch.rand(n, 4, generator=generator) - 1
    middle_P, reach_P = torch.tensor(list(PARAMETERS.values())).T
    parameters_BP = middle_P + reach_P * unit_BP
    omega, sigma8, index, H0 = parameters_BP.T[..., None, None, None]
    shape = omega * H0 / 100
    power = spectrum(wave_numbers(side), index, shape)
    power *= sigma8**2 / variance_in_spheres(index, shape)
    power /= CELL_MPC_H**3
    power[:, 0, 0, 0] = 0
    space = (1, 2, 3)
    white_BDHW = torch.randn(n, side, side, side, generator=generator)
    noise = torch.fft.rfftn(white_BDHW, dim=space)
    today_BDHW = torch.fft.irfftn(noise * power.sqrt(), s=(side, side, side), dim=space)
    counts = []
    for a in SCALE_FACTORS:
        field = today_BDHW * growth(omega, a)
        half_variance = field.var(space, keepdim=True) / 2
        mean_count = PARTICLES * torch.exp(field - half_variance)
        counts.append(torch.poisson(mean_count, generator=generator))
    counts_BCDHW = torch.stack(counts, 1).clamp(max=MAX_COUNT)
    return counts_BCDHW, unit_BP
