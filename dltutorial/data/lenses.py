"""Simulated images of a sky survey: is there a strong gravitational lens in the image?

In: how many images, how large, a seed. Out: images, scaled for a network, and labels. Every image shows an elliptical
galaxy. In half of the images (label 1) this galaxy bends the light of another galaxy far behind it into arcs. In the
other half (label 0) one to three galaxies without lensing stand beside it. They get exactly the light that the arcs
would have had, at about the same distance, so that only the shape, and not the brightness, differs. The telescope
blurs the image, and the sky adds noise.

Light that reaches us from the direction θ left its source in the direction β = θ - α(θ). The lens is a singular
isothermal ellipsoid, whose surface density is constant on ellipses with axis ratio q. Its critical curve is such an
ellipse of area π θ_E². Source: Kormann, Schneider and Bartelmann 1994 (A&A 284, 285), equations 21a to 28.

Angles on the sky are in arcseconds, position angles in radians. The unit of light is the noise of the sky in one
pixel. Parameters are tensors that broadcast against positions.

Legend: N images, B of them at a time, H rows, W columns, K weights of the blur.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from dltutorial import machine

FIELD_ARCSEC = 6.4
SEEING_ARCSEC = 0.4  # full width at half maximum of the blurred image of a star
STRETCH = 3.0  # asinh(light / STRETCH) is linear in the noise, and logarithmic in the core of a galaxy
_PHOTONS = 0.02  # variance of the noise per unit of light
_ROUND = 1e-3  # least sqrt(1 - q²), so that a round lens is no division by 0; the relative error is below 1e-6
_CENTRE_ARCSEC = 1e-6  # least distance from the lens, at which the direction of the deflection is defined
_BATCH = 512  # images at a time, which fit into the cache of a CPU


def rotate(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in a frame that is rotated by ``angle``, counter-clockwise."""
    cos = torch.cos(angle)
    sin = torch.sin(angle)
    return x * cos + y * sin, y * cos - x * sin


def deflection(
    x: Tensor, y: Tensor, einstein_radius: Tensor, axis_ratio: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """The deflection of light by a lens.

    Args:
        x, y: the position at which the light appears, from the centre of the lens.
        einstein_radius: θ_E.
        axis_ratio: q in (0, 1]. At 1 the lens is the singular isothermal sphere, and ``|α|`` = θ_E everywhere.
        angle: of the minor axis of the lens.

    Returns:
        α in x and y.
    """
    u, v = rotate(x, y, angle)
    r = torch.sqrt(u * u + v * v).clamp_min(_CENTRE_ARCSEC)
    flattening = torch.sqrt(1 - axis_ratio * axis_ratio).clamp_min(_ROUND)
    scale = einstein_radius * torch.sqrt(axis_ratio) / flattening
    deflection_u = scale * torch.asinh(flattening / axis_ratio * u / r)
    deflection_v = scale * torch.asin(flattening * v / r)
    return rotate(deflection_u, deflection_v, -angle)


def sersic(
    x: Tensor, y: Tensor, flux: Tensor, half_light_radius: Tensor, index: Tensor, axis_ratio: Tensor, angle: Tensor
) -> Tensor:
    """Surface brightness of a galaxy, in flux per square arcsecond (Sérsic 1963).

    The constant b is that of Ciotti and Bertin 1999 (A&A 352, 447), whose relative error is below 1e-4 from index 0.5
    on.

    Args:
        x, y: position from the centre of the galaxy.
        flux: the integral over the whole sky.
        half_light_radius: geometric mean of the two axes of the ellipse that contains half of the light.
        index: 1 is an exponential disc, 4 is an elliptical galaxy.
        axis_ratio: minor axis by major axis.
        angle: of the minor axis.
    """
    u, v = rotate(x, y, angle)
    radius = torch.sqrt(u * u / axis_ratio + v * v * axis_ratio) / half_light_radius
    b = 2 * index - 1 / 3 + 4 / (405 * index) + 46 / (25515 * index * index)
    log_area = torch.log(2 * math.pi * index) + torch.lgamma(2 * index) - 2 * index * torch.log(b)
    central_brightness = flux / half_light_radius**2 * torch.exp(-log_area)
    return central_brightness * torch.exp(-b * radius ** (1 / index))


@dataclass(frozen=True)
class Galaxies:
    """Parameters of galaxies as ``sersic`` needs them. All fields have the same shape."""

    x: Tensor
    y: Tensor
    flux: Tensor
    half_light_radius: Tensor
    index: Tensor
    axis_ratio: Tensor
    angle: Tensor

    def light(self, x: Tensor, y: Tensor) -> Tensor:
        """Surface brightness at positions that broadcast against the parameters."""
        return sersic(
            x - self.x,
            y - self.y,
            self.flux,
            self.half_light_radius,
            self.index,
            self.axis_ratio,
            self.angle,
        )

    def select(self, indices: Tensor, device: str | torch.device) -> "Galaxies":
        """Return some of the galaxies, on a device, with two more axes to broadcast against positions (H, W)."""
        parameters = {}
        for name, values in vars(self).items():
            parameters[name] = values[indices].to(device)[..., None, None]
        return Galaxies(**parameters)


@dataclass(frozen=True)
class Systems:
    """The content of N images, without the noise.

    Attributes:
        lens: the galaxies in the foreground, (N,). Their mass has the axis ratio and the angle of their light.
        einstein_radius: of the lenses, (N,).
        source: the galaxies behind, (N,), with positions relative to the lens.
        companions: galaxies beside the lens, (N, 3), with positions relative to it. Unused ones have flux 0.
        labels_N: 1 if the image shows the lensed source, 0 if it shows the companions.
    """

    lens: Galaxies
    einstein_radius: Tensor
    source: Galaxies
    companions: Galaxies
    labels_N: Tensor


def simulate(
    n: int, size: int = 32, seed: int = 0, device: str | None = None, progress: bool = True
) -> tuple[Tensor, Tensor]:
    """Simulate images of lenses and of other galaxies, as many of each.

    Args:
        n: number of images.
        size: pixels along an edge. The field of view does not depend on it, so more pixels are smaller.
        seed: gives the same images on every machine; those of a GPU differ from those of a CPU by rounding only.
        device: where to compute. The default is the device of this machine.
        progress: show a progress bar.

    Returns:
        Images (N, H, W), float32, stretched by asinh, and labels (N,), int64, 0 or 1; both on the CPU.
    """
    device = device or machine.device()
    generator = torch.Generator().manual_seed(seed)
    systems = draw(n, generator)
    images_NHW = torch.empty(n, size, size)
    parts = torch.arange(n).split(_BATCH)
    for chosen in tqdm(parts, desc="simulating lenses", unit="batch", disable=not progress):
        light_BHW = blur(render(systems, chosen, size, device))
        noise_BHW = torch.randn(light_BHW.shape, generator=generator).to(device)
        noise_BHW = noise_BHW * torch.sqrt(1 + _PHOTONS * light_BHW)
        images_NHW[chosen] = torch.asinh((light_BHW + noise_BHW) / STRETCH).cpu()
    return images_NHW, systems.labels_N


def draw(n: int, generator: torch.Generator) -> Systems:
    """Draw the content of each image. Half of the images, in random order, show a lensed source."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        """Uniform random numbers, of shape (N,) unless another shape is given."""
        return low + (high - low) * torch.rand(shape or (n,), generator=generator)

    def position_at(radius: Tensor) -> tuple[Tensor, Tensor]:
        """Positions x and y at this radius, in random directions."""
        angle = uniform(0, 2 * math.pi, *radius.shape)
        return radius * torch.cos(angle), radius * torch.sin(angle)

    einstein_radius = uniform(0.7, 1.6)
    lens = Galaxies(
        *position_at(uniform(0.0, 0.15)),
        flux=10 ** uniform(2.9, 3.5),
        half_light_radius=uniform(0.4, 1.0),
        index=uniform(2.5, 4.5),
        axis_ratio=uniform(0.6, 1.0),
        angle=uniform(0, math.pi),
    )
    source = Galaxies(
        *position_at(einstein_radius * uniform(0.0, 0.6)),
        flux=10 ** uniform(1.9, 2.5),
        half_light_radius=uniform(0.15, 0.35),
        index=uniform(0.8, 2.0),
        axis_ratio=uniform(0.4, 1.0),
        angle=uniform(0, math.pi),
    )
    is_used_N3 = torch.arange(3) < torch.randint(1, 4, (n, 1), generator=generator)
    companions = Galaxies(
        *position_at(einstein_radius[:, None] * uniform(0.7, 1.5, n, 3)),
        flux=is_used_N3 * uniform(0.3, 1.0, n, 3),
        half_light_radius=uniform(0.15, 0.5, n, 3),
        index=uniform(0.8, 2.0, n, 3),
        axis_ratio=uniform(0.3, 1.0, n, 3),
        angle=uniform(0, math.pi, n, 3),
    )
    labels_N = (torch.randperm(n, generator=generator) < n // 2).long()
    return Systems(lens, einstein_radius, source, companions, labels_N)


def grid(size: int, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
    """Positions of the centres of the pixels in arcseconds: x (1, W) and y (H, 1), 0 in the middle of the field."""
    number = torch.arange(size, device=device)
    position = (number + 0.5) * (FIELD_ARCSEC / size) - FIELD_ARCSEC / 2
    return position[None, :], position[:, None]


def render(systems: Systems, chosen: Tensor, size: int, device: str | torch.device = "cpu") -> Tensor:
    """Compute the light in each pixel of some systems, (B, H, W), before the blur and the noise.

    Args:
        systems: all systems.
        chosen: the indices of B systems.
        size: pixels along an edge.
        device: where to compute.
    """
    lens = systems.lens.select(chosen, device)
    einstein_radius = systems.einstein_radius[chosen].to(device)[:, None, None]
    x, y = grid(size, device)
    x_BHW = x - lens.x
    y_BHW = y - lens.y
    alpha_x, alpha_y = deflection(x_BHW, y_BHW, einstein_radius, lens.axis_ratio, lens.angle)
    source = systems.source.select(chosen, device)
    light_BHW = source.light(x_BHW - alpha_x, y_BHW - alpha_y)
    # Images with label 0 show companions instead, which get the light of the arcs.
    unlensed = (systems.labels_N[chosen] == 0).nonzero()[:, 0]
    companions = systems.companions.select(chosen[unlensed], device)
    unlensed = unlensed.to(device)
    companions_BHW = companions.light(x_BHW[unlensed, None], y_BHW[unlensed, None]).sum(1)
    light_of_arcs_B11 = light_BHW[unlensed].sum((-2, -1), keepdim=True)
    light_of_companions_B11 = companions_BHW.sum((-2, -1), keepdim=True)
    light_BHW[unlensed] = companions_BHW * (light_of_arcs_B11 / light_of_companions_B11)
    pixel_area = (FIELD_ARCSEC / size) ** 2
    return (lens.light(x, y) + light_BHW) * pixel_area


def blur(light_BHW: Tensor) -> Tensor:
    """The blur by the atmosphere: a point becomes a Gaussian, ``SEEING_ARCSEC`` wide at half of its maximum."""
    size = light_BHW.shape[-1]
    sigma = SEEING_ARCSEC / FIELD_ARCSEC * size / math.sqrt(8 * math.log(2))  # in pixels
    half_width = min(size - 1, math.ceil(4 * sigma))
    distance_K = torch.arange(-half_width, half_width + 1, device=light_BHW.device)
    weight_K = torch.exp(-0.5 * (distance_K / sigma) ** 2)
    weight_K = weight_K / weight_K.sum()
    padded_B1HW = F.pad(light_BHW[:, None], (half_width,) * 4, mode="reflect")
    blurred_in_x = F.conv2d(padded_B1HW, weight_K[None, None, None, :])
    return F.conv2d(blurred_in_x, weight_K[None, None, :, None])[:, 0]
