"""Bacteria in a dish: a simulation with four constants.

Bacteria u spread from the middle of a dish, eat a nutrient n, and die without it. Some settings leave a ring.

    u_t = D u_xx + r u² n - m u,      n_t = N n_xx - r u² n,      0 ≤ x ≤ 1 (half of the dish), no flux at its ends

A run starts with a drop, u = exp(-(x/0.1)²), and n = 1. Its result is u at time 1. A *setting* says where the four
constants are in their ranges, on a logarithmic scale from 0 to 1. Cao et al. 2016 (doi:10.1016/j.cell.2016.03.006)
describe rings of bacteria, Wang et al. 2019 (doi:10.1038/s41467-019-12342-y) surrogates that screen settings.

Legend: B runs in a batch, P constants, X points, K cosines.
"""

import math

import torch
from torch import Tensor

# Of the diffusion of bacteria D and nutrient N, the growth r and the death rate m.
SMALLEST = (2e-3, 1e-3, 20.0, 1.0)
LARGEST = (2e-2, 2e-2, 60.0, 8.0)


def constants(settings_BP: Tensor) -> Tensor:
    """Return the constants (B, P) of settings. A setting below 0 or above 1 is beyond the range."""
    low_P = torch.tensor(SMALLEST, device=settings_BP.device).log()
    high_P = torch.tensor(LARGEST, device=settings_BP.device).log()
    return (low_P + settings_BP * (high_P - low_P)).exp()


def simulate(settings_BP: Tensor, n_points: int = 64, n_steps: int = 200) -> Tensor:
    """Simulate runs side by side, and return u at time 1, (B, X). The simulation is differentiable.

    Strang splitting: half a step of diffusion, which is exact in cosines, a step of the reaction by Heun's method, and
    another half step of diffusion.
    """
    device = settings_BP.device
    dt = 1 / n_steps
    diffusion_u, diffusion_n, growth_B1, death_B1 = constants(settings_BP).split(1, 1)
    to_XK = cosines(n_points).to(device)
    waves_K = math.pi * torch.arange(n_points, device=device)
    diffusion_2B1 = torch.stack([diffusion_u, diffusion_n])
    decay_2BK = torch.exp(-dt / 2 * diffusion_2B1 * waves_K**2)
    x_X = points(n_points).to(device)
    drop_X = torch.exp(-((x_X / 0.1) ** 2))
    u_BX = drop_X.expand(len(settings_BP), -1)
    state_2BX = torch.stack([u_BX, torch.ones_like(u_BX)])

    def react(state_2BX: Tensor) -> Tensor:
        u_BX, n_BX = state_2BX
        grown_BX = growth_B1 * u_BX**2 * n_BX
        return torch.stack([grown_BX - death_B1 * u_BX, -grown_BX])

    def diffuse(state_2BX: Tensor) -> Tensor:
        coefficients_2BK = (state_2BX @ to_XK) * decay_2BK
        return coefficients_2BK @ to_XK.T

    for _ in range(n_steps):
        state_2BX = diffuse(state_2BX)
        first_2BX = react(state_2BX)
        second_2BX = react(state_2BX + dt * first_2BX)
        state_2BX = state_2BX + dt / 2 * (first_2BX + second_2BX)
        state_2BX = diffuse(state_2BX)
    return state_2BX[0]


def points(n: int) -> Tensor:
    """Return the centres of n cells between 0 and 1."""
    return (torch.arange(n) + 0.5) / n


def cosines(n: int) -> Tensor:
    """Return the orthogonal matrix (X, K) of cosines on these points: ``y @ cosines(n)`` are the coefficients of y."""
    x_X1 = points(n)[:, None].double()
    table_XK = torch.cos(math.pi * x_X1 * torch.arange(n))
    table_XK *= math.sqrt(2 / n)
    table_XK[:, 0] /= math.sqrt(2)
    return table_XK.float()
