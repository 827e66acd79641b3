"""Sharpness: the largest eigenvalues of the loss's Hessian, and the directions in which the loss bends most.

In: a product of the Hessian with a vector, or an ``Objective``. Out: eigenvalues, eigenvectors, and for each how well
it fits, |Hv − λv|. Gradient descent with rate η is stable along an eigenvector while λ < 2/η.

Power iteration multiplies one vector again and again; its error shrinks by |λ₂/λ₁| each time, and it finds the
eigenvalue of largest *absolute* value, which may be negative. Lanczos keeps all the vectors it has met, and finds the
best answer within their span: Lanczos 1950, doi:10.6028/jres.045.026. In exact arithmetic they come out orthogonal; in
rounded arithmetic they do not, and copies of eigenvalues appear, so each is made orthogonal to all before, twice.

Legend: N weights, M products so far, K eigenvalues.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
        n_products: products with the Hessian that it took.
    """

    values_K: Tensor
    vectors_KN: Tensor
    residuals_K: Tensor
    n_products: int


def naive_power(times: Product, start_N: Tensor, iterations: int) -> Spectrum:
    """Power iteration: the eigenvalue of largest absolute value, sign included.

    Args:
        times: the product of the symmetric matrix with a vector.
        start_N: any vector but zero.
        iterations: products; one more tells the residual.

    Raises:
        CourseError: fewer than one iteration.
    """
    _check(iterations, 1)
    vector_N = start_N / start_N.norm()
    for _ in range(iterations):
        product_N = times(vector_N)
        if not product_N.norm() > 0:  # a zero matrix, or a vector it sends to zero
            break
        vector_N = product_N / product_N.norm()
    return _spectrum(times, vector_N[None].double(), iterations + 1, start_N.dtype)


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
    _check(iterations, k)
    basis_MN = start_N.new_zeros((0, n), dtype=torch.float64)
    diagonal, beside = [], []  # of the tridiagonal matrix, which is the Hessian within the basis
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
            vector_N, length = _fresh(_noise(basis_MN), basis_MN), 0.0
        beside.append(length)
    top_KN = vectors_MM[:, -k:].flip(1).T.to(basis_MN.device) @ basis_MN
    return _spectrum(times, top_KN, len(basis_MN) + k, start_N.dtype)


def sharpness(
    objective: Objective, k: int = 1, iterations: int = 30, tolerance: float = 1e-3, seed: int = 0
) -> Spectrum:
    """The ``k`` largest eigenvalues of the Hessian of a model's mean loss, by Lanczos from a random start."""
    generator = torch.Generator().manual_seed(seed)
    start_N = torch.randn(objective.n_weights, generator=generator).to(objective.weights_N)
    return lanczos(objective.hessian_times, start_N, max(iterations, k), k, tolerance)


def _ritz(diagonal: list[float], beside: list[float]) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, as columns, of the tridiagonal matrix."""
    matrix_MM = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64)
        matrix_MM += torch.diag(off, 1) + torch.diag(off, -1)
    return torch.linalg.eigh(matrix_MM)


def _orthogonal(vector_N: Tensor, basis_MN: Tensor) -> Tensor:
    """What is left of a vector outside the basis. Once leaves rounding errors; twice is enough."""
    for _ in range(2):
        vector_N = vector_N - (basis_MN @ vector_N) @ basis_MN
    return vector_N


def _fresh(vector_N: Tensor, basis_MN: Tensor) -> Tensor:
    rest_N = _orthogonal(vector_N, basis_MN)
    return rest_N / rest_N.norm()


def _noise(basis_MN: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(len(basis_MN))
    return torch.randn(basis_MN.shape[1], generator=generator, dtype=torch.float64).to(basis_MN.device)


def _spectrum(times: Product, vectors_KN: Tensor, n_products: int, dtype: torch.dtype) -> Spectrum:
    """Eigenvalues as v·Hv of the given unit vectors, and the residuals, both measured anew."""
    products_KN = torch.stack([times(v_N.to(dtype)).double() for v_N in vectors_KN])
    values_K = (vectors_KN * products_KN).sum(1)
    residuals_K = (products_KN - values_K[:, None] * vectors_KN).norm(dim=1)
    return Spectrum(values_K, vectors_KN, residuals_K, n_products)


def _check(iterations: int, least: int) -> None:
    if iterations < least:
        raise CourseError(f"iterations={iterations}: take at least {least}, one for each eigenvalue")
