"""The simulated atmosphere's grid and physics: what is simulated, in which units, with which constants.

In: grid sizes. Out: a frozen ``Flow``. The equations are in ``dynamics``. This module loads no torch.

The numbers of a ``Flow`` have no dimension. The unit of length is 1152 km, the unit of speed is 20 m/s, so the unit of
time is 57 600 s (16 hours). The domain is 14 500 km by 7 200 km, and beta at 45° is 1.07. Fields are stored in SI
units.
"""

import dataclasses
import math
from dataclasses import dataclass

LENGTH_M = 1.152e6
SPEED_M_PER_S = 20.0
TIME_S = LENGTH_M / SPEED_M_PER_S

# The channels of one layer, with their SI units, and the factors from numbers without dimension.
CHANNELS = {
    "u": ("m/s", SPEED_M_PER_S),
    "v": ("m/s", SPEED_M_PER_S),
    "vorticity": ("1/s", 1 / TIME_S),
    "streamfunction": ("m^2/s", LENGTH_M * SPEED_M_PER_S),
    "tracer": ("1", 1.0),
}


@dataclass(frozen=True)
class Flow:
    """Grid and physics, without dimension. The defaults are a flow without forcing and damping.

    Attributes:
        n_lat, n_lon: grid points; even, and n_lon twice n_lat in the default domain.
        n_layers: layers of equal depth, from the top.
        height, width: size of the domain in y and x.
        beta: northward gradient of the Coriolis parameter; 1.07 is its value at 45°.
        deformation_radius: of the first baroclinic mode; not used with one layer.
        jet_speeds: peak of the equilibrium jets in each layer; empty: none.
        jet_sharpness: a larger number makes the eastward jets narrower, and the westward flow between them broader.
        vorticity_rates: r_k, per layer; empty: none.
        thermal_rate: 1/τ.
        tracer_rate: 1/τ_c.
        viscosity, viscosity_order: a field of wavenumber κ decays at the rate ``viscosity * κ**viscosity_order``.
        dt: time step; None takes ``2 / n_lat``, see ``step``.
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

    @property
    def step(self) -> float:
        """The time step, in which a wind of 60 m/s crosses one grid length. (1.4 times as long is still stable.)"""
        if self.dt is not None:
            return self.dt
        return 2 / self.n_lat

    @property
    def channel_names(self) -> tuple[str, ...]:
        """u, v, … with one layer; u_1, v_1, …, u_2, … with several layers, from the top."""
        if self.n_layers == 1:
            return tuple(CHANNELS)
        return tuple(f"{name}_{layer}" for layer in range(1, self.n_layers + 1) for name in CHANNELS)

    @property
    def channel_units(self) -> tuple[str, ...]:
        """SI unit of each channel."""
        return tuple(unit for unit, _ in CHANNELS.values()) * self.n_layers


def atmosphere(n_lat: int, n_lon: int, n_layers: int = 1) -> Flow:
    """The flow that the course's data come from, with forcing and damping."""
    flow = Flow(n_lat, n_lon, n_layers, beta=1.07, tracer_rate=0.2, viscosity=_viscosity(n_lat))
    if n_layers == 1:
        return dataclasses.replace(flow, jet_speeds=(3.5,), jet_sharpness=2.0, vorticity_rates=(0.2,), thermal_rate=0.2)
    return dataclasses.replace(
        flow,
        deformation_radius=0.6,
        jet_speeds=tuple(4.0 * (1 - layer / (n_layers - 1)) for layer in range(n_layers)),  # 0 in the lowest layer
        vorticity_rates=(0.0,) * (n_layers - 1) + (0.15,),  # friction in the lowest layer
        thermal_rate=0.3,
    )


def _viscosity(n_lat: int) -> float:
    """The shortest waves on the grid decay in about one time step; waves three times as long practically do not."""
    return 0.4 * n_lat / (n_lat / 3) ** 8


def coarsest(flow: Flow) -> Flow:
    """The same physics on a coarse grid, halved as long as at least 32 rows remain, on which the spin-up is cheap."""
    n_lat, n_lon = flow.n_lat, flow.n_lon
    while n_lat % 4 == n_lon % 4 == 0 and n_lat >= 64:
        n_lat, n_lon = n_lat // 2, n_lon // 2
    return dataclasses.replace(flow, n_lat=n_lat, n_lon=n_lon, viscosity=_viscosity(n_lat), dt=None)
