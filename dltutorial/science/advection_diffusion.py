"""A solute in a channel, of which noisy observations are given: an inverse problem.

A flow a carries the solute c, and diffusion b spreads it. Both constants are unknown:

    c_t + a c_x = b c_xx,      0 ≤ x ≤ 1,      c(0, t) = 0,      c(1, t) = 1

From c = x + sin(2πx) it settles to (exp(x a/b) - 1)/(exp(a/b) - 1), which depends on a/b only.

Legend: N observations, T times, X points in space.
"""

import math

import torch
from torch import Tensor

TRUE = {"a": 1.0, "b": 0.2}
START = {"watched": 0.0, "settled": 2.0}  # time of the first observation
LASTS = 0.25  # time from the first to the last observation
NOISE = 0.01
N_CELLS = 200
N_TIMES = 65


def solve(a: float, b: float, times_T: Tensor) -> Tensor:
    """Return c (T, X) at the ends of the cells, float64. It uses central differences, and is exact in time."""
    x_X = torch.linspace(0, 1, N_CELLS + 1, dtype=torch.float64)
    ones = torch.ones_like(x_X[1:])
    right = torch.diag(ones, 1)
    left = torch.diag(ones, -1)
    first_difference_XX = (right - left) * N_CELLS / 2
    second_difference_XX = right + left - 2 * torch.eye(len(x_X))
    second_difference_XX *= N_CELLS**2
    rate_XX = b * second_difference_XX - a * first_difference_XX
    rate_XX[[0, -1]] = 0  # c is constant at the walls
    initial_X = x_X + torch.sin(2 * math.pi * x_X)
    propagators_TXX = torch.linalg.matrix_exp(rate_XX * times_T.double()[:, None, None])
    return propagators_TXX @ initial_X


def observe(kind: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Observe c with noise at random points.

    Args:
        kind: "watched" begins at t = 0, "settled" at t = 2.
        n: The number of observations.
        seed: Of the points and the noise.

    Returns:
        The points x and t, (N, 2), and c there, (N,).
    """
    generator = torch.Generator().manual_seed(seed)
    times_T = START[kind] + torch.linspace(0, LASTS, N_TIMES)
    c_TX = solve(TRUE["a"], TRUE["b"], times_T)
    t_N = torch.randint(N_TIMES, (n,), generator=generator)
    x_N = torch.randint(N_CELLS + 1, (n,), generator=generator)
    points_N2 = torch.stack([x_N / N_CELLS, times_T[t_N]], 1)
    noise_N = NOISE * torch.randn(n, generator=generator)
    return points_N2, c_TX[t_N, x_N].float() + noise_N
