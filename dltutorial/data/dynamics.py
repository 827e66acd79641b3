"""The equations of the simulated atmosphere: layers of quasi-geostrophic flow on a doubly periodic beta-plane.

In: a ``Flow`` (grid and physics) and seeds. Out: states, their time steps, and their fields in SI units.

Each layer k, top first, carries potential vorticity q and a passive tracer c, advected by its own wind:

    dq_k/dt + u·∇q_k + β v_k = -r_k (ζ_k - ζ_k*) - (s_k - s_k*)/τ - hyperviscosity
    dc_k/dt + u·∇c_k         = -(c_k - c*)/τ_c - hyperviscosity
    q_k = ζ_k + s_k,  ζ = ∇²ψ,  s_k = S (ψ_{k-1} - 2ψ_k + ψ_{k+1}),  u = -∂ψ/∂y,  v = ∂ψ/∂x

(at the top and bottom S couples to one neighbour only). The starred equilibrium is a pair of eastward jets. With one
layer s = 0: the jets are unstable by their horizontal shear. With several, the sun keeps them stronger aloft (τ), the
ground drags on the lowest layer (r_L), and storms grow on the vertical shear. Vallis 2017, Atmospheric and Oceanic
Fluid Dynamics, sections 5.3 and 9.2; Fourier method: Canuto et al. 2006, Spectral Methods, section 3.3.

Numbers here are without dimension (``flow`` has the units); fields come out in SI units.

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
    """A flow's equations as arrays, ready to use on one device in one precision."""

    flow: Flow
    ddx_1K: Tensor
    ddy_H1: Tensor
    wavenumber2_HK: Tensor
    keep_HK: Tensor
    inverse_LLHK: Tensor
    linear_LHK: Tensor
    forcing_SHK: Tensor
    decay_half_SHK: Tensor


def operators(flow: Flow, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Operators:
    """Work out once what every step needs; in float64 first, then rounded to ``dtype``."""
    L, f64 = flow.n_layers, torch.float64
    l_H1 = (fftfreq(flow.n_lat, 1 / flow.n_lat, dtype=f64) * (2 * math.pi / flow.height))[:, None]
    k_1K = (torch.arange(flow.n_lon // 2 + 1, dtype=f64) * (2 * math.pi / flow.width))[None, :]
    k2_HK = k_1K**2 + l_H1**2
    # Products of two fields are exact below a third of the grid's wavenumbers (the 2/3 rule); the rest is cut off.
    row_H1 = fftfreq(flow.n_lat, 1 / flow.n_lat).abs()[:, None]
    keep_HK = (row_H1 < flow.n_lat / 3) & (torch.arange(flow.n_lon // 2 + 1)[None, :] < flow.n_lon / 3)

    coupling_LL = _coupling(L, flow.deformation_radius)
    rates_L11 = torch.tensor(flow.vorticity_rates or (0.0,) * L, dtype=f64)[:, None, None]
    jets_LHK, tracer_HK = _equilibrium(flow, l_H1)
    # q relaxes at the thermal rate exactly, inside the decay; what that does too much to ζ is put right here.
    linear_LHK = -flow.beta * 1j * k_1K - (flow.thermal_rate - rates_L11) * k2_HK
    jet_forcing_LHK = -rates_L11 * k2_HK * jets_LHK
    jet_forcing_LHK = jet_forcing_LHK + flow.thermal_rate * torch.einsum("lm,mhk->lhk", coupling_LL + 0j, jets_LHK)
    forcing_SHK = torch.cat([jet_forcing_LHK, (flow.tracer_rate * tracer_HK).expand(L, -1, -1)])
    rate_S11 = torch.tensor([flow.thermal_rate] * L + [flow.tracer_rate] * L, dtype=f64)[:, None, None]
    decay_half_SHK = torch.exp(-flow.step / 2 * (rate_S11 + flow.viscosity * k2_HK ** (flow.viscosity_order / 2)))

    def put(x: Tensor) -> Tensor:
        return x.to(device, dtype.to_complex() if x.is_complex() else dtype)

    return Operators(
        flow=flow, ddx_1K=put(1j * k_1K), ddy_H1=put(1j * l_H1), wavenumber2_HK=put(k2_HK),
        keep_HK=keep_HK.to(device, dtype), inverse_LLHK=put(_inverse(coupling_LL, k2_HK) * keep_HK),
        linear_LHK=put(linear_LHK * keep_HK), forcing_SHK=put(forcing_SHK * keep_HK),
        decay_half_SHK=put(decay_half_SHK * keep_HK),
    )  # fmt: skip


def _coupling(n_layers: int, deformation_radius: float) -> Tensor:
    """The matrix (L, L) that makes s of ψ, scaled so that the first baroclinic mode has the radius asked for."""
    if n_layers == 1:
        return torch.zeros(1, 1, dtype=torch.float64)
    ones = torch.ones(n_layers - 1, dtype=torch.float64)
    neighbours = torch.diag(ones, 1) + torch.diag(ones, -1)
    matrix = neighbours - torch.diag(neighbours.sum(1))
    return matrix / (4 * math.sin(math.pi / (2 * n_layers)) ** 2 * deformation_radius**2)


def _inverse(coupling_LL: Tensor, k2_HK: Tensor) -> Tensor:
    """For every wavenumber the matrix (L, L) that makes ψ of q; the mean of the domain is set to 0."""
    eigenvalues_M, modes_LM = torch.linalg.eigh(coupling_LL)
    denominator_MHK = eigenvalues_M[:, None, None] - k2_HK
    gain_MHK = torch.where(denominator_MHK.abs() < 1e-9, 0.0, 1 / denominator_MHK)
    gain_MHK[:, 0, 0] = 0
    return torch.einsum("lm,mhk,nm->lnhk", modes_LM, gain_MHK, modes_LM)


def _equilibrium(flow: Flow, l_H1: Tensor) -> tuple[Tensor, Tensor]:
    """Spectra of the jets' streamfunction (L, H, K), and of the tracer, high at one latitude and low at another."""
    y_H = torch.arange(flow.n_lat, dtype=torch.float64) * (2 * math.pi / flow.n_lat)
    profile_H = torch.exp(flow.jet_sharpness * (torch.cos(2 * y_H) - 1))
    profile_H = (profile_H - profile_H.mean()) / (1 - profile_H.mean())  # mean 0, peak 1
    # MKL in torch 2.6 refuses expanded views, whose columns are one and the same memory.
    spectrum_H1 = rfft2(profile_H[:, None].expand(-1, flow.n_lon).contiguous(), norm="forward")[:, :1]
    speeds_L11 = torch.tensor(flow.jet_speeds or (0.0,) * flow.n_layers, dtype=torch.float64)[:, None, None]
    jets_LHK = torch.zeros(flow.n_layers, flow.n_lat, flow.n_lon // 2 + 1, dtype=torch.complex128)
    safe_H1 = torch.where(l_H1 == 0, 1.0, l_H1)
    jets_LHK[:, :, :1] = speeds_L11 * torch.where(l_H1 == 0, 0, 1j * spectrum_H1 / safe_H1)
    tracer_HW = torch.cos(y_H)[:, None].expand(-1, flow.n_lon).contiguous()
    return jets_LHK, rfft2(tracer_HW, norm="forward")


def streamfunction(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """Spectrum of ψ, shape (B, L, H, K), from the potential vorticity of all layers."""
    q_BLHK = state_BSHK[:, : ops.flow.n_layers]
    return ops.inverse_LLHK[0] * q_BLHK if ops.flow.n_layers == 1 else (ops.inverse_LLHK * q_BLHK[:, None]).sum(2)


def tendency(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """Rate of change of the state, but for its exact exponential decay (``decay_half_SHK``), which a step adds."""
    L, size = ops.flow.n_layers, (ops.flow.n_lat, ops.flow.n_lon)
    psi_BLHK = streamfunction(state_BSHK, ops)
    spectra = torch.cat([-ops.ddy_H1 * psi_BLHK, ops.ddx_1K * psi_BLHK, state_BSHK], 1)
    u_BLHW, v_BLHW, carried_BSHW = irfft2(spectra, s=size, norm="forward").split([L, L, 2 * L], 1)
    flux_x, flux_y = (rfft2(carried_BSHW * wind.repeat(1, 2, 1, 1), norm="forward") for wind in (u_BLHW, v_BLHW))
    change_BSHK = ops.forcing_SHK - ops.keep_HK * (ops.ddx_1K * flux_x + ops.ddy_H1 * flux_y)
    change_BSHK[:, :L] += ops.linear_LHK * psi_BLHK
    return change_BSHK


def rk4_step(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """One time step: Runge-Kutta of order 4 in variables from which the exponential decay is divided out."""
    dt, half = ops.flow.step, ops.decay_half_SHK
    k1 = tendency(state_BSHK, ops)
    k2 = tendency(half * (state_BSHK + dt / 2 * k1), ops)
    decayed = half * state_BSHK
    k3 = tendency(decayed + dt / 2 * k2, ops)
    k4 = tendency(half * (decayed + dt * k3), ops)
    return half * (decayed + dt / 6 * (half * k1 + 2 * (k2 + k3))) + dt / 6 * k4


def fields(state_BSHK: Tensor, ops: Operators) -> Tensor:
    """The state on the grid in SI units, shape (B, C, H, W); channels as in ``Flow.channel_names``."""
    psi_BLHK = streamfunction(state_BSHK, ops)
    spectra = (
        -ops.ddy_H1 * psi_BLHK, ops.ddx_1K * psi_BLHK, -ops.wavenumber2_HK * psi_BLHK, psi_BLHK,
        state_BSHK[:, ops.flow.n_layers :],
    )  # fmt: skip
    scaled = [factor * x for (_, factor), x in zip(CHANNELS.values(), spectra, strict=True)]
    return irfft2(torch.stack(scaled, 2), s=(ops.flow.n_lat, ops.flow.n_lon), norm="forward").flatten(1, 2)


def state_from(psi_BLHW: Tensor, tracer_BLHW: Tensor, ops: Operators) -> Tensor:
    """The state (B, S, H, K) that has this streamfunction and tracer, given without dimension on the grid."""
    psi_BLHK = rfft2(psi_BLHW, norm="forward")
    coupling_LL = _coupling(ops.flow.n_layers, ops.flow.deformation_radius).to(psi_BLHK)
    q_BLHK = torch.einsum("lm,bmhk->blhk", coupling_LL, psi_BLHK) - ops.wavenumber2_HK * psi_BLHK
    return ops.keep_HK * torch.cat([q_BLHK, rfft2(tracer_BLHW, norm="forward")], 1)


def initial_state(ops: Operators, seeds: Sequence[int | Sequence[int]], eddy_speed: float = 0.5) -> Tensor:
    """Jets half as strong as in equilibrium, and random large eddies; the same for a seed on every machine."""
    flow, size = ops.flow, (ops.flow.n_lat, ops.flow.n_lon)
    noise = np.stack([np.random.default_rng(seed).standard_normal((flow.n_layers, *size)) for seed in seeds])
    noise_BLHK = rfft2(torch.from_numpy(noise), norm="forward")
    l_H1, k2_HK = (x.cpu().double() for x in (ops.ddy_H1.imag, ops.wavenumber2_HK))
    eddies_BLHW = irfft2(noise_BLHK * torch.exp(-k2_HK / 4) * (k2_HK > 0), s=size, norm="forward")
    spectra = rfft2(eddies_BLHW, norm="forward")
    speed = irfft2(1j * l_H1 * spectra, s=size, norm="forward").std((1, 2, 3), keepdim=True)
    jets_LHK, tracer_HK = _equilibrium(flow, l_H1)
    psi_BLHW = 0.5 * irfft2(jets_LHK, s=size, norm="forward") + eddy_speed * eddies_BLHW / speed
    tracer_BLHW = irfft2(tracer_HK, s=size, norm="forward").expand_as(psi_BLHW).contiguous()
    real = ops.keep_HK.dtype
    return state_from(psi_BLHW.to(ops.keep_HK.device, real), tracer_BLHW.to(ops.keep_HK.device, real), ops)


def refine(state_BSHK: Tensor, fine: Operators) -> Tensor:
    """The same state on a grid at least as fine: its coefficients among zeros."""
    B, S, H, K = state_BSHK.shape
    out = state_BSHK.new_zeros(B, S, fine.flow.n_lat, fine.flow.n_lon // 2 + 1)
    out[:, :, : H // 2, :K] = state_BSHK[:, :, : H // 2]
    out[:, :, -(H // 2) :, :K] = state_BSHK[:, :, -(H // 2) :]
    return out
