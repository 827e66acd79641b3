"""Sharpness: the largest eigenvalues of the loss's Hessian, and slices of the loss along their directions.

In: a product of the Hessian with a vector, or an ``Objective``. Out: eigenvalues, eigenvectors, and for each how well
it fits, |Hv − λv|; the loss at steps along them. Gradient descent with rate η is stable along an eigenvector while
λ < 2/η.

Power iteration multiplies one vector again and again. Lanczos keeps all the vectors it has met, and finds the best
answer within their span: Lanczos 1950, doi:10.6028/jres.045.026. In exact arithmetic they come out orthogonal; in
rounded arithmetic they do not, and copies of eigenvalues appear, so each is made orthogonal to all before, twice.

The distance of a slice is that in the space of all weights, with no rescaling of filters: rescaling makes pictures of
unlike networks comparable (Li et al. 2018, arXiv:1712.09913), but then curvature along the axis is no eigenvalue.

Legend: N weights, M products so far, K eigenvalues, A points along a direction.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dltutorial.convergence.objective import Objective
from dltutorial.errors import CourseError

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Spectrum:
    """The top of a spectrum, largest first.

    Attributes:
        values_K: eigenvalues, float64.
        vectors_KN: unit eigenvectors, one a row.
        residuals_K: |Hv − λv|; some eigenvalue lies within this distance of λ.
    """

    values_K: Tensor
    vectors_KN: Tensor
    residuals_K: Tensor


def lanczos(times: Product, start_N: Tensor, iterations: int, k: int = 1, tolerance: float = 1e-3) -> Spectrum:
    """The ``k`` largest eigenvalues (algebraically) of a symmetric matrix that is known by its products only.

    Args:
        times: the product of the matrix with a vector, in the vector's dtype.
        start_N: any vector but zero, best a random one.
        iterations: at most so many products, before the ``k`` that tell the residuals.
        k: how many eigenvalues.
        tolerance: stop when each residual is, by Lanczos' own estimate, below this part of the largest eigenvalue.

    Raises:
        CourseError: too few iterations, or more eigenvalues than the matrix has.
    """
    n = len(start_N)
    if not 1 <= k <= n:
        raise CourseError(f"k={k} eigenvalues of a matrix of {n} rows; choose 1 to {n}")
    if iterations < k:
        raise CourseError(f"iterations={iterations}: take at least {k}, one for each eigenvalue")
    basis_MN = start_N.new_zeros((0, n), dtype=torch.float64)
    diagonal, beside = list[float](), list[float]()  # of the tridiagonal matrix, which is the Hessian within the basis
    vector_N, length = _fresh(start_N.double(), basis_MN), 0.0
    for count in range(1, min(iterations, n) + 1):
        basis_MN = torch.cat([basis_MN, vector_N[None]])
        product_N = times(vector_N.to(start_N.dtype)).double()
        diagonal.append(float(vector_N @ product_N))
        rest_N = _orthogonal(product_N, basis_MN)
        length = float(rest_N.norm())
        values_M, vectors_MM = _ritz(diagonal, beside)
        scale = max(float(values_M.abs().max()), 1e-300)
        residuals_K = length * vectors_MM[-1, -k:].abs()
        if count == n or (count >= k and length > 1e-12 * scale and residuals_K.max() < tolerance * scale):
            break
        if length > 1e-12 * scale:
            vector_N = rest_N / length
        else:  # the span is closed: go on outside it, where copies and the rest of the spectrum are
            noise_N = torch.randn(n, generator=torch.Generator().manual_seed(len(basis_MN)), dtype=torch.float64)
            vector_N, length = _fresh(noise_N.to(basis_MN.device), basis_MN), 0.0
        beside.append(length)
    top_KN = vectors_MM[:, -k:].flip(1).T.to(basis_MN.device) @ basis_MN
    # Eigenvalues and residuals are measured anew, on the vectors themselves.
    products_KN = torch.stack([times(v_N.to(start_N.dtype)).double() for v_N in top_KN])
    values_K = (top_KN * products_KN).sum(1)
    residuals_K = (products_KN - values_K[:, None] * top_KN).norm(dim=1)
    return Spectrum(values_K, top_KN, residuals_K)


def sharpness(
    objective: Objective, k: int = 1, iterations: int = 30, tolerance: float = 1e-3, seed: int = 0
) -> Spectrum:
    """The ``k`` largest eigenvalues of the Hessian of a model's mean loss, by Lanczos from a random start."""
    generator = torch.Generator().manual_seed(seed)
    start_N = torch.randn(objective.n_weights, generator=generator).to(objective.weights_N)
    return lanczos(objective.hessian_times, start_N, max(iterations, k), k, tolerance)


def _ritz(diagonal: list[float], beside: list[float]) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, as columns, of the tridiagonal matrix."""
    on, off = (torch.tensor(x, dtype=torch.float64) for x in (diagonal, beside[: len(diagonal) - 1]))
    return torch.linalg.eigh(torch.diag(on) + torch.diag(off, 1) + torch.diag(off, -1))


def _orthogonal(vector_N: Tensor, basis_MN: Tensor) -> Tensor:
    """What is left of a vector outside the basis. Once leaves rounding errors; twice is enough."""
    for _ in range(2):
        vector_N = vector_N - (basis_MN @ vector_N) @ basis_MN
    return vector_N


def _fresh(vector_N: Tensor, basis_MN: Tensor) -> Tensor:
    rest_N = _orthogonal(vector_N, basis_MN)
    return rest_N / rest_N.norm()


@dataclass(frozen=True)
class Slice:
    """The loss at steps along one direction, in the unit of the weights, and as L + a g·v + ½ a² v·Hv predicts it."""

    distance_A: np.ndarray
    loss_A: np.ndarray
    predicted_A: np.ndarray


def along(objective: Objective, direction_N: Tensor, reach: float, points: int = 41) -> Slice:
    """The loss from ``-reach`` to ``reach`` along one direction, made a unit vector, at an odd number of points."""
    unit_N, distance_A = _unit(objective, direction_N), _distances(reach, points)
    loss_A = np.array([objective.value(objective.weights_N + float(a) * unit_N) for a in distance_A])
    slope = float(objective.gradient() @ unit_N)
    curvature = float(objective.hessian_times(unit_N) @ unit_N)
    predicted_A = loss_A[points // 2] + slope * distance_A + curvature * distance_A**2 / 2
    return Slice(distance_A, loss_A, predicted_A)


def across(
    objective: Objective, directions_2N: Tensor, reach: float, points: int = 17
) -> tuple[np.ndarray, np.ndarray]:
    """The loss on a square grid along two directions at right angles: (distances, losses), the first down the rows."""
    one_N, other_N = (_unit(objective, direction_N) for direction_N in directions_2N)
    distance_A, centre_N = _distances(reach, points), objective.weights_N
    rows = [[objective.value(centre_N + float(a) * one_N + float(c) * other_N) for c in distance_A] for a in distance_A]
    return distance_A, np.array(rows)


def _unit(objective: Objective, direction_N: Tensor) -> Tensor:
    direction_N = direction_N.to(objective.weights_N)
    return direction_N / torch.linalg.vector_norm(direction_N)


def _distances(reach: float, points: int) -> np.ndarray:
    if points % 2 == 0:
        raise CourseError(f"points={points}: take an odd number, so that the weights themselves are among them")
    return np.linspace(-reach, reach, points)
