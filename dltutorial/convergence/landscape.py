"""Slices of the loss landscape: the loss along one or two directions from where the weights are.

In: an ``Objective`` and unit directions, best eigenvectors of its Hessian. Out: the loss at steps of length a along
them, and what slope and curvature at the centre predict, L + a g·v + ½ λ a². Where the two part, the Hessian has
nothing more to say.

The distance a is that in the space of all weights, with no rescaling of filters: rescaling makes pictures of unlike
networks comparable (Li et al. 2018, arXiv:1712.09913), but then curvature along the axis is no eigenvalue any more.

Legend: N weights, A points along the first direction, C along the second.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dltutorial.convergence.objective import Objective
from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Slice:
    """The loss along one direction.

    Attributes:
        distance_A: steps from the weights, in the unit of the weights.
        loss_A: measured there.
        predicted_A: from loss, slope and curvature at the centre.
    """

    distance_A: np.ndarray
    loss_A: np.ndarray
    predicted_A: np.ndarray


def along(objective: Objective, direction_N: Tensor, reach: float, points: int = 41) -> Slice:
    """The loss from ``-reach`` to ``reach`` along one direction.

    Args:
        objective: whose loss, from its own weights.
        direction_N: made a unit vector.
        reach: how far, in the unit of the weights.
        points: odd, so that the centre is one of them.

    Raises:
        CourseError: a direction without length, or points that cannot be.
    """
    unit_N, distance_A = _unit(objective, direction_N), _distances(reach, points)
    loss_A = np.array([objective.value(objective.weights_N + float(a) * unit_N) for a in distance_A])
    slope = float(objective.gradient() @ unit_N)
    curvature = float(objective.hessian_times(unit_N) @ unit_N)
    predicted_A = loss_A[points // 2] + slope * distance_A + curvature * distance_A**2 / 2
    return Slice(distance_A, loss_A, predicted_A)


def across(
    objective: Objective, directions_2N: Tensor, reach: float, points: int = 17
) -> tuple[np.ndarray, np.ndarray]:
    """The loss on a square grid along two directions: (distances, losses), the first direction down the rows.

    Raises:
        CourseError: not two directions at right angles, or points that cannot be.
    """
    if len(directions_2N) != 2:
        raise CourseError(f"{len(directions_2N)} directions; a grid has two")
    one_N, other_N = (_unit(objective, direction_N) for direction_N in directions_2N)
    if abs(float(one_N @ other_N)) > 1e-2:
        raise CourseError("the two directions are not at right angles, so distances would deceive; orthogonalise them")
    distance_A, centre_N = _distances(reach, points), objective.weights_N
    rows = [[objective.value(centre_N + float(a) * one_N + float(c) * other_N) for c in distance_A] for a in distance_A]
    return distance_A, np.array(rows)


def _unit(objective: Objective, direction_N: Tensor) -> Tensor:
    direction_N = direction_N.to(objective.weights_N)
    length = torch.linalg.vector_norm(direction_N)
    if direction_N.shape != objective.weights_N.shape or not 0 < float(length) < float("inf"):
        raise CourseError(f"a direction has {objective.n_weights} numbers, finite and not all zero, as the weights")
    return direction_N / length


def _distances(reach: float, points: int) -> np.ndarray:
    if not reach > 0 or points < 3 or points % 2 == 0:
        raise CourseError(f"reach={reach}, points={points}: go some way, with an odd number of points, at least 3")
    return np.linspace(-reach, reach, points)
