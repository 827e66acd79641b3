"""A simulated survey image for every seed: is there a strong gravitational lens in it?

In: how many, how large, a seed. Out: images as a network likes them, and labels. Every image shows an elliptical
galaxy. In half of them (label 1) it bends the light of a galaxy far behind it into arcs. In the other half (label 0)
one to three galaxies happen to stand beside it, unlensed; they are given exactly the light that the arcs would have
had, at about the same distance, so that brightness tells nothing and only shape does. The telescope blurs, the sky
adds noise.

Light that reaches us from the direction θ left its source in the direction β = θ - α(θ). The lens is a singular
isothermal ellipsoid: its surface density is constant on ellipses with axis ratio q, and its critical curve is such an
ellipse of area π θ_E². Kormann, Schneider and Bartelmann 1994 (A&A 284, 285), equations 21a to 28.

Angles on the sky are in arcseconds, position angles in radians. Light is counted in units of the sky's noise in one
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
from dltutorial.errors import RecipeError

FIELD_ARCSEC = 6.4
SEEING_ARCSEC = 0.4  # full width at half maximum of the blurred image of a star
STRETCH = 3.0  # asinh(light / STRETCH): linear in the noise, logarithmic in the galaxy's core
_PHOTONS = 0.02  # variance that a unit of light adds
_ROUND = 1e-3  # sqrt(1 - q²) of a lens taken for round: its deflection is then off by less than a part in a million
_CENTRE_ARCSEC = 1e-6  # no direction can be told any nearer to the lens
_BATCH = 512  # images at a time: what they need stays in the CPU's cache


def rotate(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in a frame that is turned by ``angle`` counter-clockwise."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    return x * cos + y * sin, y * cos - x * sin


def deflection(
    x: Tensor, y: Tensor, einstein_radius: Tensor, axis_ratio: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """By how much light is bent, α in x and y, that is seen at x and y from the centre of the lens.

    The Einstein radius is θ_E, the axis ratio q in (0, 1]; at 1 the lens is the singular isothermal sphere, and
    |α| = θ_E everywhere. The angle is that of the lens's minor axis.
    """
    u, v = rotate(x, y, angle)
    r = torch.sqrt(u * u + v * v).clamp_min(_CENTRE_ARCSEC)
    flattening = torch.sqrt(1 - axis_ratio * axis_ratio).clamp_min(_ROUND)
    scale = einstein_radius * torch.sqrt(axis_ratio) / flattening
    along = scale * torch.asinh(flattening / axis_ratio * u / r)
    return rotate(along, scale * torch.asin(flattening * v / r), -angle)


def sersic(
    x: Tensor, y: Tensor, flux: Tensor, half_light_radius: Tensor, index: Tensor, axis_ratio: Tensor, angle: Tensor
) -> Tensor:
    """Surface brightness of a galaxy, in flux per square arcsecond; over the whole sky it adds up to ``flux``.

    Sérsic 1963; the constant b by Ciotti and Bertin 1999 (A&A 352, 447), good to a part in 10⁴ from index 0.5 on.
    The half-light radius is the geometric mean of the ellipse's axes; index 1 is an exponential disc, 4 an elliptical
    galaxy; the angle is that of the minor axis.
    """
    u, v = rotate(x, y, angle)
    radius = torch.sqrt(u * u / axis_ratio + v * v * axis_ratio) / half_light_radius
    b = 2 * index - 1 / 3 + 4 / (405 * index) + 46 / (25515 * index * index)
    log_area = torch.log(2 * math.pi * index) + torch.lgamma(2 * index) - 2 * index * torch.log(b)
    return flux / half_light_radius**2 * torch.exp(-log_area) * torch.exp(-b * radius ** (1 / index))


@dataclass(frozen=True)
class Galaxies:
    """Parameters of galaxies as ``sersic`` takes them, every field of one shape."""

    x: Tensor
    y: Tensor
    flux: Tensor
    half_light_radius: Tensor
    index: Tensor
    axis_ratio: Tensor
    angle: Tensor

    def light(self, x: Tensor, y: Tensor) -> Tensor:
        """Surface brightness at positions that broadcast against the parameters."""
        shape = (self.flux, self.half_light_radius, self.index, self.axis_ratio, self.angle)
        return sersic(x - self.x, y - self.y, *shape)

    def of(self, chosen: Tensor, device: str | torch.device) -> "Galaxies":
        """Some of them, shaped to broadcast against positions (H, W)."""
        return Galaxies(*(value[chosen].to(device)[..., None, None] for value in vars(self).values()))


@dataclass(frozen=True)
class Systems:
    """Everything that is in N images but the noise.

    Attributes:
        lens: the galaxies in the foreground, (N,); their mass has the axis ratio and the angle of their light.
        einstein_radius: of their mass, (N,).
        source: the galaxies behind, (N,), placed relative to the lens.
        companions: galaxies beside the lens, (N, 3), placed relative to it; those that are not there have flux 0.
        labels_N: 1 where the source is seen, lensed; 0 where companions are.
    """

    lens: Galaxies
    einstein_radius: Tensor
    source: Galaxies
    companions: Galaxies
    labels_N: Tensor


def simulate(
    n: int, size: int = 32, seed: int = 0, device: str | None = None, progress: bool = True
) -> tuple[Tensor, Tensor]:
    """Images (N, H, W), float32, stretched by asinh, and labels (N,), int64, 0 or 1, as many of each; both on the CPU.

    The same seed gives the same images; those of a GPU differ from a CPU's by rounding only. The field is the same for
    every ``size``, the pixels along an edge, so more pixels are smaller ones.

    Raises:
        RecipeError: fewer than 2 images, or fewer than 8 pixels.
    """
    if n < 2 or size < 8:
        raise RecipeError(f"{n} images of {size} × {size} cannot be simulated; take at least 2 of 8 × 8")
    device = device or machine.device()
    generator = torch.Generator().manual_seed(seed)
    systems = draw(n, generator)
    images_NHW = torch.empty(n, size, size)
    for chosen in tqdm(torch.arange(n).split(_BATCH), desc="simulating lenses", unit="batch", disable=not progress):
        light_BHW = blur(render(systems, chosen, size, device))
        noise_BHW = torch.randn(light_BHW.shape, generator=generator).to(device)
        images_NHW[chosen] = torch.asinh((light_BHW + noise_BHW * torch.sqrt(1 + _PHOTONS * light_BHW)) / STRETCH).cpu()
    return images_NHW, systems.labels_N


def draw(n: int, generator: torch.Generator) -> Systems:
    """What is in each image; half of them, at random places, hold a lensed source."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape or (n,), generator=generator)

    def around(radius: Tensor) -> tuple[Tensor, Tensor]:
        angle = uniform(0, 2 * math.pi, *radius.shape)
        return radius * torch.cos(angle), radius * torch.sin(angle)

    einstein_radius = uniform(0.7, 1.6)
    lens = Galaxies(
        *around(uniform(0.0, 0.15)), flux=10 ** uniform(2.9, 3.5), half_light_radius=uniform(0.4, 1.0),
        index=uniform(2.5, 4.5), axis_ratio=uniform(0.6, 1.0), angle=uniform(0, math.pi),
    )  # fmt: skip
    source = Galaxies(
        *around(einstein_radius * uniform(0.0, 0.6)), flux=10 ** uniform(1.9, 2.5),
        half_light_radius=uniform(0.15, 0.35), index=uniform(0.8, 2.0), axis_ratio=uniform(0.4, 1.0),
        angle=uniform(0, math.pi),
    )  # fmt: skip
    there = torch.arange(3) < torch.randint(1, 4, (n, 1), generator=generator)
    companions = Galaxies(
        *around(einstein_radius[:, None] * uniform(0.7, 1.5, n, 3)), flux=there * uniform(0.3, 1.0, n, 3),
        half_light_radius=uniform(0.15, 0.5, n, 3), index=uniform(0.8, 2.0, n, 3),
        axis_ratio=uniform(0.3, 1.0, n, 3), angle=uniform(0, math.pi, n, 3),
    )  # fmt: skip
    labels_N = (torch.randperm(n, generator=generator) < n // 2).long()
    return Systems(lens, einstein_radius, source, companions, labels_N)


def grid(size: int, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
    """Positions of the pixels' centres in arcseconds: x (1, W) and y (H, 1), 0 in the middle of the field."""
    place = (torch.arange(size, device=device) + 0.5) * (FIELD_ARCSEC / size) - FIELD_ARCSEC / 2
    return place[None, :], place[:, None]


def render(systems: Systems, chosen: Tensor, size: int, device: str | torch.device = "cpu") -> Tensor:
    """The light in each pixel of some systems, (B, H, W), as it arrives at the telescope."""
    lens, einstein_radius = systems.lens.of(chosen, device), systems.einstein_radius[chosen].to(device)[:, None, None]
    x, y = grid(size, device)
    x_BHW, y_BHW = x - lens.x, y - lens.y
    bent_x, bent_y = deflection(x_BHW, y_BHW, einstein_radius, lens.axis_ratio, lens.angle)
    beside_BHW = systems.source.of(chosen, device).light(x_BHW - bent_x, y_BHW - bent_y)
    alone = (systems.labels_N[chosen] == 0).nonzero()[:, 0].to(device)
    arcs_B11 = beside_BHW[alone].sum((-2, -1), keepdim=True)
    companions = systems.companions.of(chosen[alone.cpu()], device)
    companions_BHW = companions.light(x_BHW[alone, None], y_BHW[alone, None]).sum(1)
    beside_BHW[alone] = companions_BHW * (arcs_B11 / companions_BHW.sum((-2, -1), keepdim=True))
    return (lens.light(x, y) + beside_BHW) * (FIELD_ARCSEC / size) ** 2


def blur(light_BHW: Tensor) -> Tensor:
    """What the atmosphere makes of it: a point becomes a Gaussian, ``SEEING_ARCSEC`` wide at half its height."""
    size = light_BHW.shape[-1]
    sigma = SEEING_ARCSEC / FIELD_ARCSEC * size / math.sqrt(8 * math.log(2))
    reach = min(size - 1, math.ceil(4 * sigma))
    weight_K = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=light_BHW.device) / sigma) ** 2)
    weight_K = weight_K / weight_K.sum()
    padded = F.pad(light_BHW[:, None], (reach,) * 4, mode="reflect")
    return F.conv2d(F.conv2d(padded, weight_K[None, None, None, :]), weight_K[None, None, :, None])[:, 0]
