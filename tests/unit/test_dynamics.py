import dataclasses
import math

import pytest
import torch

from dltutorial.data import dynamics
from dltutorial.data.flow import LENGTH_M, Flow, atmosphere, coarsest


@pytest.fixture(autouse=True)
def _one_thread():
    """Small arrays: more threads only get into each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def free(n_layers=1, **more):
    """Operators, in float64, of a flow without forcing and damping, and its grid."""
    flow = Flow(32, 64, n_layers, **more)
    y_H1 = torch.arange(flow.n_lat, dtype=torch.float64)[:, None] * flow.height / flow.n_lat
    x_1W = torch.arange(flow.n_lon, dtype=torch.float64)[None, :] * flow.width / flow.n_lon
    return dynamics.operators(flow, dtype=torch.float64), x_1W, y_H1


def start(psi_LHW, ops):
    psi_BLHW = psi_LHW.expand(1, ops.flow.n_layers, -1, -1)
    return dynamics.state_from(psi_BLHW, torch.zeros_like(psi_BLHW), ops)


def run(state, ops, duration):
    for _ in range(round(duration / ops.flow.step)):
        state = dynamics.rk4_step(state, ops)
    return state


def psi_of(state, ops):
    return torch.fft.irfft2(dynamics.streamfunction(state, ops), norm="forward")[0]


def test_taylor_green_vortices_decay_as_analysis_says():
    ops, x, y = free(viscosity=0.02, viscosity_order=2)
    psi = torch.cos(x) * torch.cos(y)
    after = psi_of(run(start(psi, ops), ops, 5.0), ops)
    torch.testing.assert_close(after[0], psi * math.exp(-2 * 0.02 * 5.0), rtol=0, atol=1e-12)


def test_advection_of_two_crossing_waves_is_exact():
    ops, x, y = free()
    # ψ = cos x + cos 2y: u = 2 sin 2y, v = -sin x, ζ = -cos x - 4 cos 2y, so u·∇ζ = -6 sin x sin 2y
    change = dynamics.tendency(start(torch.cos(x) + torch.cos(2 * y), ops), ops)
    rate = torch.fft.irfft2(change[0, 0], norm="forward")
    torch.testing.assert_close(rate, 6 * torch.sin(x) * torch.sin(2 * y), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("signs", "stretching"), [([1.0], 0.0), ([1.0, 1.0], 0.0), ([1.0, -1.0], 1 / 0.5**2)])
def test_rossby_waves_move_at_their_phase_speed(signs, stretching):
    ops, x, y = free(len(signs), beta=2.0, deformation_radius=0.5)
    shape_L11 = torch.tensor(signs, dtype=torch.float64)[:, None, None]
    k, m, time = 1.5, 2.0, 3.0
    speed = -2.0 / (k**2 + m**2 + stretching)
    after = psi_of(run(start(shape_L11 * torch.cos(k * x + m * y), ops), ops, time), ops)
    exact = shape_L11 * torch.cos(k * (x - speed * time) + m * y)
    torch.testing.assert_close(after, exact, rtol=0, atol=1e-6)


def invariants(state_BSHK, ops):
    """Energy -½⟨ψq⟩ and potential enstrophy ½⟨q²⟩, means over domain and layers; a free flow keeps both."""
    spectra = state_BSHK[:, : ops.flow.n_layers], dynamics.streamfunction(state_BSHK, ops)
    q, psi = (torch.fft.irfft2(x, s=(ops.flow.n_lat, ops.flow.n_lon), norm="forward") for x in spectra)
    return -0.5 * (psi * q).mean((1, 2, 3)), 0.5 * (q**2).mean((1, 2, 3))


@pytest.mark.parametrize("n_layers", [1, 2])
def test_drift_of_the_invariants_shrinks_at_the_order_of_the_scheme(n_layers):
    drifts = []
    for dt in (0.04, 0.02, 0.01):
        ops, _, _ = free(n_layers, beta=1.0, dt=dt)
        state = dynamics.initial_state(ops, [1, 2, 3, 4], eddy_speed=1.0)
        before, after = (invariants(s, ops) for s in (state, run(state, ops, 2.0)))
        drifts.append([(a / b - 1).square().mean().sqrt().item() for a, b in zip(after, before, strict=True)])
    for coarse, middle, fine in zip(*drifts, strict=True):  # energy, then enstrophy
        assert fine < 1e-6
        # Runge-Kutta of order 4 loses energy at order 5: its error of order 4 only shifts the waves.
        assert 4.5 < math.log2(coarse / middle) < 6 and 4.5 < math.log2(middle / fine) < 6


def test_winds_with_two_layers_grow_and_settle_without_nan():
    ops = dynamics.operators(atmosphere(32, 64, 2))
    with torch.inference_mode():
        state = dynamics.initial_state(ops, [1], eddy_speed=0.01)
        speeds = [dynamics.fields(state, ops)[:, 1::5].std().item()]
        speeds += [dynamics.fields(state := run(state, ops, 6.0), ops)[:, 1::5].std().item() for _ in range(5)]
    assert speeds[0] < 0.3
    assert all(2 < speed < 20 for speed in speeds[-3:])  # m/s, as in real weather


@pytest.mark.parametrize("n_layers", [1, 2, 4])
def test_documented_step_is_stable_with_a_margin(n_layers):
    flow = atmosphere(32, 64, n_layers)
    ops = dynamics.operators(dataclasses.replace(flow, dt=1.2 * flow.step))
    with torch.inference_mode():
        state = run(dynamics.initial_state(ops, [1, 2]), ops, 8.0)
        assert torch.isfinite(dynamics.fields(state, ops)).all()


def test_fields_are_in_si_units():
    ops, _, _ = free(2)
    x_B5HW = dynamics.fields(dynamics.initial_state(ops, [5]), ops).unflatten(1, (2, 5))
    u, v, vorticity, psi, tracer = x_B5HW.unbind(2)
    d_m = LENGTH_M * ops.flow.height / 32

    def slope(x, dim):  # central difference on the periodic grid
        return (x.roll(-1, dim) - x.roll(1, dim)) / (2 * d_m)

    for exact, approximate in ((u, -slope(psi, -2)), (v, slope(psi, -1)), (vorticity, slope(v, -1) - slope(u, -2))):
        assert (exact - approximate).std() < 0.1 * exact.std()
    assert 5 < v.std() < 20
    assert 0.5 < tracer.std() < 1


def test_refined_state_agrees_on_the_coarse_points():
    flow = atmosphere(64, 128, 2)
    coarse, fine = (dynamics.operators(f, dtype=torch.float64) for f in (coarsest(flow), flow))
    state = dynamics.initial_state(coarse, [0])
    both = dynamics.fields(dynamics.refine(state, fine), fine)[..., ::2, ::2], dynamics.fields(state, coarse)
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9)


def test_years_do_not_depend_on_their_neighbours_and_differ():
    ops = dynamics.operators(atmosphere(16, 32), dtype=torch.float64)
    both = run(dynamics.initial_state(ops, [(0, 1), (0, 2)]), ops, 2.0)
    alone = run(dynamics.initial_state(ops, [(0, 2)]), ops, 2.0)
    torch.testing.assert_close(both[1:], alone, rtol=0, atol=1e-12)
    assert (both[0] - both[1]).abs().max() > 0.01
