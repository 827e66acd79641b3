"""The simulated atmosphere's grid and physics: what is simulated, in which units, with which constants.

In: grid sizes. Out: a frozen ``Flow``. The equations are in ``dynamics``. Loads no torch.

Numbers of a ``Flow`` are without dimension: 1 is 1152 km, 20 m/s, and so 57 600 s (16 hours). The domain is then
14 500 km by 7 200 km, and beta at 45° is 1.07. Fields are stored in SI units.
"""

import dataclasses
import math
from dataclasses import dataclass

from dltutorial.errors import RecipeError

LENGTH_M = 1.152e6
SPEED_M_PER_S = 20.0
TIME_S = LENGTH_M / SPEED_M_PER_S

# One layer's channels, their SI units, and the factor from numbers without dimension.
CHANNELS = {
    "u": ("m/s", SPEED_M_PER_S), "v": ("m/s", SPEED_M_PER_S), "vorticity": ("1/s", 1 / TIME_S),
    "streamfunction": ("m^2/s", LENGTH_M * SPEED_M_PER_S), "tracer": ("1", 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Flow:
    """Grid and physics, without dimension. The defaults are a free flow: nothing forced, nothing damped.

    Attributes:
        n_lat, n_lon: grid points; even, and n_lon twice n_lat in the default domain.
        n_layers: layers of equal depth, top first.
        height, width: size of the domain in y and x.
        beta: how fast the Coriolis parameter grows northward; 1.07 is that of 45°.
        deformation_radius: of the first baroclinic mode (no meaning with one layer).
        jet_speeds: peak of the equilibrium jets in each layer; empty: none.
        jet_sharpness: how narrow the eastward jets are; the westward flow between them is broad.
        vorticity_rates: r_k, per layer; empty: none.
        thermal_rate: 1/τ.
        tracer_rate: 1/τ_c.
        viscosity, viscosity_order: a field of wavenumber κ decays at the rate ``viscosity * κ**viscosity_order``.
        dt: time step; None takes ``2 / n_lat``, the documented step.
    """

    n_lat: int
    n_lon: int
    n_layers: int = 1
    height: float = 2 * math.pi
    width: float = 4 * math.pi
    beta: float = 0.0
    deformation_radius: float = 0.5
    jet_speeds: tuple[float, ...] = ()
    jet_sharpness: float = 1.0
    vorticity_rates: tuple[float, ...] = ()
    thermal_rate: float = 0.0
    tracer_rate: float = 0.0
    viscosity: float = 0.0
    viscosity_order: int = 8
    dt: float | None = None

    def __post_init__(self) -> None:
        """Refuse, as a RecipeError, an odd or tiny grid."""
        if self.n_lat < 8 or self.n_lon < 8 or self.n_lat % 2 or self.n_lon % 2:
            raise RecipeError(f"a grid of {self.n_lat} × {self.n_lon} cannot be simulated; take even numbers from 8")

    @property
    def step(self) -> float:
        """The time step: a wind of 60 m/s crosses one grid length in it. (1.4 times as long is still stable.)"""
        return 2 / self.n_lat if self.dt is None else self.dt

    @property
    def channel_names(self) -> tuple[str, ...]:
        """u, v, … with one layer; u_1, v_1, …, u_2, … with several, top layer first."""
        tails = [""] if self.n_layers == 1 else [f"_{k}" for k in range(1, self.n_layers + 1)]
        return tuple(name + tail for tail in tails for name in CHANNELS)

    @property
    def channel_units(self) -> tuple[str, ...]:
        """SI unit of each channel."""
        return tuple(unit for unit, _ in CHANNELS.values()) * self.n_layers


def atmosphere(n_lat: int, n_lon: int, n_layers: int = 1) -> Flow:
    """The forced and damped flow that the course's data come from."""
    flow = Flow(n_lat, n_lon, n_layers, beta=1.07, tracer_rate=0.2, viscosity=_viscosity(n_lat))
    if n_layers == 1:
        return dataclasses.replace(flow, jet_speeds=(3.5,), jet_sharpness=2.0, vorticity_rates=(0.2,), thermal_rate=0.2)
    speeds = tuple(4.0 * (1 - k / (n_layers - 1)) for k in range(n_layers))  # none at the ground
    drag = (0.0,) * (n_layers - 1) + (0.15,)
    return dataclasses.replace(flow, deformation_radius=0.6, jet_speeds=speeds, vorticity_rates=drag, thermal_rate=0.3)


def _viscosity(n_lat: int) -> float:
    """The smallest waves that the grid carries decay in about one time step, those three times as large not at all."""
    return 0.4 * n_lat / (n_lat / 3) ** 8


def coarsest(flow: Flow) -> Flow:
    """The same physics on a grid halved while at least 32 rows stay: quick to spin up on."""
    n_lat, n_lon = flow.n_lat, flow.n_lon
    while n_lat % 4 == n_lon % 4 == 0 and n_lat >= 64:
        n_lat, n_lon = n_lat // 2, n_lon // 2
    return dataclasses.replace(flow, n_lat=n_lat, n_lon=n_lon, viscosity=_viscosity(n_lat), dt=None)
