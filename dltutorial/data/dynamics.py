"""The equations of the simulated atmosphere: layers of quasi-geostrophic flow on a doubly periodic beta-plane.

In: a ``Flow`` (grid and physics) and seeds. Out: states, their time steps, and their fields in SI units.

Each layer k, from the top, has a potential vorticity q and a passive tracer c, which its own wind advects:

    dq_k/dt + u·∇q_k + β v_k = -r_k (ζ_k - ζ_k*) - (s_k - s_k*)/τ - hyperviscosity
    dc_k/dt + u·∇c_k         = -(c_k - c*)/τ_c - hyperviscosity
    q_k = ζ_k + s_k,  ζ = ∇²ψ,  s_k = S (ψ_{k-1} - 2ψ_k + ψ_{k+1}),  u = -∂ψ/∂y,  v = ∂ψ/∂x

At the top and at the bottom, S couples to one neighbour only. The starred equilibrium is a pair of eastward jets. With
one layer s = 0, and the jets are unstable because of their horizontal shear. With several layers, heating keeps the
jets stronger in the upper layers (τ), friction slows the lowest layer (r_L), and storms grow on the vertical shear.
Sources: Vallis 2017, Atmospheric and Oceanic Fluid Dynamics, sections 5.3 and 9.2; for the Fourier method, Canuto et
al. 2006, Spectral Methods, section 3.3.

Numbers here have no dimension (``flow`` defines the units); fields come out in SI units.

Legend: B years side by side, L layers, S = 2L advected fields (q of each layer, then c of each layer), H rows
(latitude), W columns (longitude), K = W/2 + 1 zonal wavenumbers, C = 5L channels. Spectra are of ``rfft2`` with
``norm="forward"``, so that a coefficient does not depend on the grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.fft import fftfreq, irfft2, rfft2

from dltutorial.data.flow import CHANNELS, Flow


@dataclass(frozen=True)
class Operators:
    """The equations of a flow as arrays, on one device and in one precision.

    Attributes:
        flow: grid and physics.
        ddx_1K, ddy_H1: a product with them is a derivative.
        wavenumber2_HK: squared wavenumber.
        resolved_HK: 1 for the wavenumbers of the state, 0 for the shorter waves, which are always 0.
        inverse_LLHK: from the potential vorticity to the streamfunction.
        linear_LHK: the linear terms, as a factor of the streamfunction.
        forcing_SHK: the constant terms.
        decay_half_SHK: the exponential decay over half a time step.
    """

    flow: Flow
    ddx_1K: Tensor
    ddy_H1: Tensor
    wavenumber2_HK: Tensor
    resolved_HK: Tensor
    inverse_LLHK: Tensor
    linear_LHK: Tensor
    forcing_SHK: Tensor
    decay_half_SHK: Tensor


def operators(flow: Flow, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Operators:
    """Compute the arrays that every time step needs, in float64, and round them to ``dtype``."""
    k_1K, l_H1 = _wavenumbers(flow)
    k2_HK = k_1K**2 + l_H1**2
    resolved_HK = _resolved(flow)
    coupling_LL = _coupling(flow.n_layers, flow.deformation_radius)

    def prepared(x: Tensor) -> Tensor:
        """Move an array to the device, in the chosen precision."""
        if x.is_complex():
            return x.to(device, dtype.to_complex())
        return x.to(device, dtype)

    return Operators(
        flow=flow,
        ddx_1K=prepared(1j * k_1K),
        ddy_H1=prepared(1j * l_H1),
        wavenumber2_HK=prepared(k2_HK),
        resolved_HK=resolved_HK.to(device, dtype),
        inverse_LLHK=prepared(_inverse(coupling_LL, k2_HK) * resolved_HK),
        linear_LHK=prepared(_linear(flow, k_1K, k2_HK) * resolved_HK),
        forcing_SHK=prepared(_forcing(flow, l_H1, k2_HK, coupling_LL) * resolved_HK),
        decay_half_SHK=prepared(_decay_of_half_a_step(flow, k2_HK) * resolved_HK),
    )


def _linear(flow: Flow, k_1K: Tensor, k2_HK: Tensor) -> Tensor:
    """The linear terms in ψ, (L, H, K): the beta effect, and a correction of the decay.

    The exact exponential decay lets all of q decay at the thermal rate. But ζ, which is a part of q, should decay at
    its own rate. The correction is the difference.
    """
    rates_L11 = _of_layers(flow.vorticity_rates, flow.n_layers)
    beta_effect_1K = -flow.beta * 1j * k_1K
    return beta_effect_1K - (flow.thermal_rate - rates_L11) * k2_HK


def _forcing(flow: Flow, l_H1: Tensor, k2_HK: Tensor, coupling_LL: Tensor) -> Tensor:
    """The constant terms, (S, H, K), which drive the state towards the equilibrium."""
    jets_LHK, tracer_HK = _equilibrium(flow, l_H1)
    rates_L11 = _of_layers(flow.vorticity_rates, flow.n_layers)
    vorticity_forcing_LHK = -rates_L11 * k2_HK * jets_LHK
    stretching_LHK = torch.einsum("lm,mhk->lhk", coupling_LL + 0j, jets_LHK)
    jet_forcing_LHK = vorticity_forcing_LHK + flow.thermal_rate * stretching_LHK
    tracer_forcing_LHK = (flow.tracer_rate * tracer_HK).expand(flow.n_layers, -1, -1)
    return torch.cat([jet_forcing_LHK, tracer_forcing_LHK])


def _decay_of_half_a_step(flow: Flow, k2_HK: Tensor) -> Tensor:
    """The factor, (S, H, K), by which relaxation and hyperviscosity reduce the state over half a time step."""
    L = flow.n_layers
    rate_S11 = _of_layers([flow.thermal_rate] * L + [flow.tracer_rate] * L, 2 * L)
    hyperviscosity_HK = flow.viscosity * k2_HK ** (flow.viscosity_order / 2)
    return torch.exp(-flow.step / 2 * (rate_S11 + hyperviscosity_HK))


def _spectrum(x: Tensor) -> Tensor:
    """The spectrum (…, H, K) of fields (…, H, W)."""
    return rfft2(x, norm="forward")


def _on_grid(spectrum: Tensor, flow: Flow) -> Tensor:
    """The fields (…, H, W) of spectra (…, H, K)."""
    return irfft2(spectrum, s=(flow.n_lat, flow.n_lon), norm="forward")


def _of_layers(values: Sequence[float], n_layers: int) -> Tensor:
    """One number for each layer, (L, 1, 1); zeros if the flow has no such numbers."""
    values = values or (0.0,) * n_layers
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def _wavenumbers(flow: Flow) -> tuple[Tensor, Tensor]:
    """Zonal wavenumbers (1, K) and meridional wavenumbers (H, 1)."""
    rows_H = fftfreq(flow.n_lat, 1 / flow.n_lat, dtype=torch.float64)
    columns_K = torch.arange(flow.n_lon // 2 + 1, dtype=torch.float64)
    k_1K = columns_K * (2 * math.pi / flow.width)
    l_H1 = rows_H * (2 * math.pi / flow.height)
    return k_1K[None, :], l_H1[:, None]


def _resolved(flow: Flow) -> Tensor:
    """True for the wavenumbers (H, K) below a third of the grid's. For these, products of two fields are exact."""
    rows_H = fftfreq(flow.n_lat, 1 / flow.n_lat).abs()
    columns_K = torch.arange(flow.n_lon // 2 + 1)
    return (rows_H < flow.n_lat / 3)[:, None] & (columns_K < flow.n_lon / 3)[None, :]


def _coupling(n_layers: int, deformation_radius: float) -> Tensor:
    """The matrix (L, L) that gives s from ψ, scaled so that the first baroclinic mode has the deformation radius."""
    if n_layers == 1:
        return torch.zeros(1, 1, dtype=torch.float64)
    ones = torch.ones(n_layers - 1, dtype=torch.float64)
    neighbours = torch.diag(ones, 1) + torch.diag(ones, -1)
    matrix = neighbours - torch.diag(neighbours.sum(1))
    first_mode = 4 * math.sin(math.pi / (2 * n_layers)) ** 2
    return matrix / (first_mode * deformation_radius**2)


def _inverse(coupling_LL: Tensor, k2_HK: Tensor) -> Tensor:
    """For each wavenumber, the matrix (L, L) that gives ψ from q. The mean of the domain is set to 0."""
    eigenvalues_M, modes_LM = torch.linalg.eigh(coupling_LL)
    denominator_MHK = eigenvalues_M[:, None, None] - k2_HK
    gain_MHK = torch.where(denominator_MHK.abs() < 1e-9, 0.0, 1 / denominator_MHK)
    gain_MHK[:, 0, 0] = 0
    return torch.einsum("lm,mhk,nm->lnhk", modes_LM, gain_MHK, modes_LM)


def _equilibrium(flow: Flow, l_H1: Tensor) -> tuple[Tensor, Tensor]:
    """The equilibrium as spectra.

    Returns:
        The streamfunction of the jets (L, H, K), and the tracer (H, K), which is high at one latitude and low at
        another.
    """
    y_H = torch.arange(flow.n_lat, dtype=torch.float64) * (2 * math.pi / flow.n_lat)
    profile_H = torch.exp(flow.jet_sharpness * (torch.cos(2 * y_H) - 1))
    profile_H = (profile_H - profile_H.mean()) / (1 - profile_H.mean())  # mean 0, peak 1
    # In torch 2.6, MKL does not accept expanded views, whose columns are the same memory. Hence ``contiguous``.
    profile_HW = profile_H[:, None].expand(-1, flow.n_lon).contiguous()
    spectrum_H1 = _spectrum(profile_HW)[:, :1]
    speeds_L11 = _of_layers(flow.jet_speeds, flow.n_layers)
    is_mean_H1 = l_H1 == 0
    safe_l_H1 = torch.where(is_mean_H1, 1.0, l_H1)
    jets_LHK = torch.zeros(flow.n_layers, flow.n_lat, flow.n_lon // 2 + 1, dtype=torch.complex128)
    jets_LHK[:, :, :1] = speeds_L11 * torch.where(is_mean_H1, 0, 1j * spectrum_H1 / safe_l_H1)
    tracer_HW = torch.cos(y_H)[:, None].expand(-1, flow.n_lon).contiguous()
    return jets_LHK, _spectrum(tracer_HW)


def streamfunction(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """The spectrum of ψ, shape (B, L, H, K), from the potential vorticity of all layers."""
    q_BLHK = state_BSHK[:, : ops.flow.n_layers]
    if ops.flow.n_layers == 1:
        return ops.inverse_LLHK[0] * q_BLHK
    return (ops.inverse_LLHK * q_BLHK[:, None]).sum(2)


def tendency(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """The rate of change of the state, without its exponential decay, which ``rk4_step`` adds exactly."""
    L = ops.flow.n_layers
    psi_BLHK = streamfunction(state_BSHK, ops)
    u_BLHK = -ops.ddy_H1 * psi_BLHK
    v_BLHK = ops.ddx_1K * psi_BLHK
    # Products are computed on the grid. One transform of all fields is faster than three.
    on_grid = _on_grid(torch.cat([u_BLHK, v_BLHK, state_BSHK], 1), ops.flow)
    u_BLHW, v_BLHW, state_BSHW = on_grid.split([L, L, 2 * L], 1)
    u_BSHW = u_BLHW.repeat(1, 2, 1, 1)  # each wind advects q and c of its layer
    v_BSHW = v_BLHW.repeat(1, 2, 1, 1)
    flux_x_BSHK = _spectrum(state_BSHW * u_BSHW)
    flux_y_BSHK = _spectrum(state_BSHW * v_BSHW)
    divergence_BSHK = ops.ddx_1K * flux_x_BSHK + ops.ddy_H1 * flux_y_BSHK
    change_BSHK = ops.forcing_SHK - ops.resolved_HK * divergence_BSHK
    change_BSHK[:, :L] += ops.linear_LHK * psi_BLHK
    return change_BSHK


def rk4_step(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """One time step by the classical Runge-Kutta method of order 4, with the exponential decay as an exact factor."""
    dt = ops.flow.step
    half = ops.decay_half_SHK
    decayed_BSHK = half * state_BSHK  # the state after half a step, if nothing but the decay acted
    # The tendency at the start, twice in the middle, and at the end of the time step.
    k1_BSHK = tendency(state_BSHK, ops)
    k2_BSHK = tendency(half * (state_BSHK + dt / 2 * k1_BSHK), ops)
    k3_BSHK = tendency(decayed_BSHK + dt / 2 * k2_BSHK, ops)
    k4_BSHK = tendency(half * (decayed_BSHK + dt * k3_BSHK), ops)
    first_three_BSHK = half * k1_BSHK + 2 * (k2_BSHK + k3_BSHK)
    return half * (decayed_BSHK + dt / 6 * first_three_BSHK) + dt / 6 * k4_BSHK


def fields(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """The state on the grid in SI units, shape (B, C, H, W); channels as in ``Flow.channel_names``."""
    psi_BLHK = streamfunction(state_BSHK, ops)
    spectra = {
        "u": -ops.ddy_H1 * psi_BLHK,
        "v": ops.ddx_1K * psi_BLHK,
        "vorticity": -ops.wavenumber2_HK * psi_BLHK,
        "streamfunction": psi_BLHK,
        "tracer": state_BSHK[:, ops.flow.n_layers :],
    }
    in_si_units = [factor * spectra[name] for name, (_, factor) in CHANNELS.items()]
    x_BLFHW = _on_grid(torch.stack(in_si_units, 2), ops.flow)
    return x_BLFHW.flatten(1, 2)


def state_from(psi_BLHW: Tensor, tracer_BLHW: Tensor, ops: Operators) -> Tensor:
    """The state (B, S, H, K) that has this streamfunction and tracer, which are on the grid and without dimension."""
    psi_BLHK = _spectrum(psi_BLHW)
    tracer_BLHK = _spectrum(tracer_BLHW)
    coupling_LL = _coupling(ops.flow.n_layers, ops.flow.deformation_radius).to(psi_BLHK)
    stretching_BLHK = torch.einsum("lm,bmhk->blhk", coupling_LL, psi_BLHK)
    q_BLHK = stretching_BLHK - ops.wavenumber2_HK * psi_BLHK
    return ops.resolved_HK * torch.cat([q_BLHK, tracer_BLHK], 1)


def initial_state(ops: Operators, seeds: Sequence[int | Sequence[int]], eddy_speed: float = 0.5) -> Tensor:
    """Jets of half the equilibrium's strength, and random large eddies.

    Args:
        ops: the equations.
        seeds: of each year. A seed gives the same state on every machine.
        eddy_speed: standard deviation of the eddies' zonal wind, without dimension.

    Returns:
        The state (B, S, H, K).
    """
    flow = ops.flow
    shape = (flow.n_layers, flow.n_lat, flow.n_lon)
    noise = [np.random.default_rng(seed).standard_normal(shape) for seed in seeds]
    noise_BLHK = _spectrum(torch.from_numpy(np.stack(noise)))
    l_H1 = ops.ddy_H1.imag.cpu().double()
    k2_HK = ops.wavenumber2_HK.cpu().double()
    large_eddies_BLHK = noise_BLHK * torch.exp(-k2_HK / 4) * (k2_HK > 0)
    eddies_BLHW = _on_grid(large_eddies_BLHK, flow)
    wind_BLHW = _on_grid(1j * l_H1 * _spectrum(eddies_BLHW), flow)
    speed_B111 = wind_BLHW.std((1, 2, 3), keepdim=True)
    jets_LHK, tracer_HK = _equilibrium(flow, l_H1)
    psi_BLHW = 0.5 * _on_grid(jets_LHK, flow) + eddy_speed * eddies_BLHW / speed_B111
    tracer_BLHW = _on_grid(tracer_HK, flow).expand_as(psi_BLHW).contiguous()
    return state_from(psi_BLHW.to(ops.resolved_HK), tracer_BLHW.to(ops.resolved_HK), ops)


def refine(state_BSHK: Tensor, fine: Operators) -> Tensor:
    """The same state on a finer grid: its coefficients, and zeros for the shorter waves."""
    B, S, H, K = state_BSHK.shape
    half = H // 2  # rows of positive wavenumbers; those of negative wavenumbers follow
    refined = state_BSHK.new_zeros(B, S, fine.flow.n_lat, fine.flow.n_lon // 2 + 1)
    refined[:, :, :half, :K] = state_BSHK[:, :, :half]
    refined[:, :, -half:, :K] = state_BSHK[:, :, -half:]
    return refined
