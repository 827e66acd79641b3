"""Gravitational lensing by a singular isothermal ellipsoid (SIE), and the light profile of a galaxy.

In: positions on the sky and parameters, all tensors that broadcast against each other; angles in arcseconds, position
angles in radians. Out: deflections, convergence, magnification, surface brightness.

Light that reaches us from the direction θ left its source in the direction β = θ - α(θ). The lens has surface density
κ (in units of the critical one) that is constant on ellipses with axis ratio q; its critical curve is such an ellipse
of area π θ_E². Kormann, Schneider and Bartelmann 1994 (A&A 284, 285), equations 21a to 28.
"""

import math

import torch
from torch import Tensor

_ROUND = 1e-3  # sqrt(1 - q²) of a lens taken for round: its deflection is then off by less than a part in a million
_CENTRE_ARCSEC = 1e-6  # no direction can be told any nearer to the lens


def rotate(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in a frame that is turned by ``angle`` counter-clockwise."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    return x * cos + y * sin, y * cos - x * sin


def deflection(
    x: Tensor, y: Tensor, einstein_radius: Tensor, axis_ratio: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """By how much light is bent, α, in x and y.

    Args:
        x, y: where the light is seen, relative to the centre of the lens.
        einstein_radius: θ_E.
        axis_ratio: q in (0, 1]; at 1 the lens is the singular isothermal sphere, |α| = θ_E everywhere.
        angle: of the lens's minor axis.
    """
    u, v = rotate(x, y, angle)
    r = torch.sqrt(u * u + v * v).clamp_min(_CENTRE_ARCSEC)
    flattening = torch.sqrt(1 - axis_ratio * axis_ratio).clamp_min(_ROUND)
    scale = einstein_radius * torch.sqrt(axis_ratio) / flattening
    along = scale * torch.asinh(flattening / axis_ratio * u / r)
    across = scale * torch.asin(flattening * v / r)
    return rotate(along, across, -angle)


def potential(x: Tensor, y: Tensor, einstein_radius: Tensor, axis_ratio: Tensor, angle: Tensor) -> Tensor:
    """The lensing potential ψ, whose gradient is the deflection; it grows in proportion to the radius."""
    along, across = deflection(x, y, einstein_radius, axis_ratio, angle)
    return x * along + y * across


def convergence(x: Tensor, y: Tensor, einstein_radius: Tensor, axis_ratio: Tensor, angle: Tensor) -> Tensor:
    """Surface density κ over the critical one; 1/2 on the critical curve."""
    u, v = rotate(x, y, angle)
    radius = torch.sqrt(u * u + (axis_ratio * v) ** 2).clamp_min(_CENTRE_ARCSEC)
    return 0.5 * einstein_radius * torch.sqrt(axis_ratio) / radius


def magnification(x: Tensor, y: Tensor, einstein_radius: Tensor, axis_ratio: Tensor, angle: Tensor) -> Tensor:
    """How much larger an image at (x, y) is than its source; negative where it is mirrored.

    An isothermal lens shears as much as it converges, so that the Jacobian of β(θ) has the determinant 1 - 2κ.
    """
    return 1 / (1 - 2 * convergence(x, y, einstein_radius, axis_ratio, angle))


def sersic(
    x: Tensor, y: Tensor, flux: Tensor, half_light_radius: Tensor, index: Tensor, axis_ratio: Tensor, angle: Tensor
) -> Tensor:
    """Surface brightness of a galaxy, in flux per square arcsecond; over the whole sky it adds up to ``flux``.

    Sérsic 1963; the constant b by Ciotti and Bertin 1999 (A&A 352, 447), good to a part in 10⁴ from index 0.5 on.

    Args:
        x, y: relative to the galaxy's centre.
        flux: all its light.
        half_light_radius: of the ellipse, as the geometric mean of its axes.
        index: n; 1 is an exponential disc, 4 an elliptical galaxy.
        axis_ratio, angle: of the ellipse, and of its minor axis.
    """
    u, v = rotate(x, y, angle)
    radius = torch.sqrt(u * u / axis_ratio + v * v * axis_ratio) / half_light_radius
    b = 2 * index - 1 / 3 + 4 / (405 * index) + 46 / (25515 * index * index)
    log_area = torch.log(2 * math.pi * index) + torch.lgamma(2 * index) - 2 * index * torch.log(b)
    peak = flux / half_light_radius**2 * torch.exp(-log_area)
    return peak * torch.exp(-b * radius ** (1 / index))
