"""Gradient lag: update with the gradients of some steps ago, so that no update waits for a message.

In: parameters with fresh gradients. Out: the same parameters with older ones. With a lag of one step a gradient's
all-reduce may take as long as a whole step and still be hidden; Kurth et al. 2018 (arXiv:1810.01993) did so on
Summit. Workers that send to a parameter server whenever they are ready have a lag too, a different one at each update.

The price, for plain gradient descent on a quadratic: see :func:`largest_stable_rate`.
"""

import math
from collections import deque
from collections.abc import Iterable

from torch import Tensor, nn

from dltutorial.errors import CourseError


class GradientLag:
    """Call :meth:`exchange` between the backward pass and the optimizer's step."""

    def __init__(self, parameters: Iterable[nn.Parameter], lag: int) -> None:
        """Keep ``lag`` sets of gradients.

        Raises:
            CourseError: ``lag`` is negative.
        """
        if lag < 0:
            raise CourseError(f"lag={lag}: a gradient can be 0 or more steps old")
        self._parameters, self.lag = list(parameters), lag
        self._kept: deque[list[Tensor | None]] = deque()

    def exchange(self) -> None:
        """Put each parameter's gradient away and give it the one of ``lag`` steps ago; none for the first steps."""
        self._kept.append([None if p.grad is None else p.grad.clone() for p in self._parameters])
        due = self._kept.popleft() if len(self._kept) > self.lag else [None] * len(self._parameters)
        for parameter, gradient in zip(self._parameters, due, strict=True):
            parameter.grad = gradient


def largest_stable_rate(curvature: float, lag: int) -> float:
    """The learning rate beyond which gradient descent with ``lag`` diverges on a quadratic of that curvature.

    w(t+1) = w(t) − η λ w(t − lag) is stable up to η λ = 2 sin(π / (4 lag + 2)): 2, 1, 0.62, … for lag 0, 1, 2, ….
    Levin and May 1976, doi:10.1016/0040-5809(76)90043-5.
    """
    return 2 * math.sin(math.pi / (4 * lag + 2)) / curvature
