import dataclasses

import pytest

from dltutorial.course.checks.simulated import SimulatedRun
from dltutorial.profile import bottlenecks
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.evidence import Evidence
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.probes import Figure
from dltutorial.profile.throughput import Phase, Throughput
from dltutorial.profile.trace_breakdown import StepBreakdown
from dltutorial.profile.work import Operator, Work

MS, US = 1e-3, 1e-6


def split(io, synthetic, full, **more):
    """Rates in samples/s; the rest as a loader has it that computes in this very thread."""
    given = {"wait_s": 1 / io, "io_cores": 1.0, "step_cores": 1.0, "full_cores": 1.0} | more
    return Throughput(
        io=Phase(1 / io, 1 / io, given["io_cores"], 1.0),
        synthetic=Phase(1 / synthetic, 0.0, given["step_cores"], 1.0),
        full=Phase(1 / full, given["wait_s"], given["full_cores"], 1.0),
        cores=2,
    )


def bottleneck(**evidence):
    return bottlenecks.investigate(Evidence(**evidence)).bottleneck


def judged(rates):
    """What the rules say of a split, with a trace of the same run on a CPU."""
    trace = on_cpu(("aten::mm", rates.synthetic.batch_s), load_s=rates.full.wait_s)
    return bottlenecks.investigate(Evidence(trace, rates))


def on_cpu(*operators, load_s=0.0, step_s=None, steps=3, gap=("", 0.0)):
    """A trace of steps without a device: loading, then operators (name, seconds) one after the other, then a gap."""
    events, now_s = [], 0.0
    for _ in range(steps):
        start_s = now_s
        if load_s:
            events.append(Event("load", "range", now_s, load_s, 0))
            now_s += load_s
        for name, seconds in operators:
            events.append(Event(name, "operator", now_s, seconds, 0))
            now_s += seconds
        if gap[1]:
            events.append(Event(gap[0], "range", now_s, gap[1], 0))
            now_s += gap[1]
        now_s = max(now_s, start_s + (step_s or 0.0))
        events.append(Event("step", "range", start_s, now_s - start_s, 0))
    return Trace.of(events, ("thread 1",))


def machine_peaks(bf16=None):
    def figure(value):
        return None if value is None else Figure(value, value, "", "")

    matmul = {"fp32": figure(1e12), "bf16": figure(bf16)}
    return Peaks("a machine", "cuda", "2026-01-01T00:00:00+00:00", matmul, figure(1e11), {})


def test_ranges_of_any_thread_separate_reading_from_preparation():
    events = [Event("read", "range", 0.0, 6 * MS, 1), Event("augment", "range", 6 * MS, 2 * MS, 1)]
    whole = Trace.of([*on_cpu(("aten::mm", MS), load_s=8 * MS, steps=1).events, *events], ("a", "b"))
    assert bottleneck(trace=whole).name == bottlenecks.READ


# A device beside the host: what waits for what follows from the simulated times


@pytest.mark.parametrize(
    ("run", "right"),
    [
        (SimulatedRun(load_s=20 * MS), bottlenecks.LOADING),
        (SimulatedRun(load_s=20 * MS, prefetch=2), bottlenecks.PREPARE),
        (SimulatedRun(load_s=3 * MS, prefetch=2, products=0.9), bottlenecks.COMPUTE),
        (SimulatedRun(products=0.9, kernel_s=500 * US), bottlenecks.COMPUTE),
        (SimulatedRun(products=0.05, kernel_s=500 * US), bottlenecks.BANDWIDTH),
        (SimulatedRun(load_s=5 * MS, products=0.9, synchronise_steps=False), bottlenecks.COMPUTE),
        (SimulatedRun(kernels=600, kernel_s=2 * US), bottlenecks.LAUNCHES),
        (SimulatedRun(kernels=600, kernel_s=2 * US, prefetch=2), bottlenecks.LAUNCHES),
        (
            SimulatedRun(kernels=600, kernel_s=10 * US, synchronise_every=1, load_s=0.1 * MS),
            bottlenecks.SYNCHRONISATION,
        ),
    ],
)
def test_a_device_is_judged_by_what_would_be_quickest_without(run, right):
    result = bottleneck(trace=run.trace(0))
    assert result.name == right, result
    assert result.gain is None if right == bottlenecks.COMPUTE else result.gain > 1.2


def test_the_expected_gain_is_what_the_simulated_run_gains_by_it():
    slow = SimulatedRun(kernels=600, kernel_s=10 * US, synchronise_every=1, load_s=0.1 * MS)
    quick = dataclasses.replace(slow, synchronise_every=0)
    seconds = [StepBreakdown.of(run.trace()).step_s for run in (slow, quick)]
    assert bottleneck(trace=slow.trace()).gain == pytest.approx(seconds[0] / seconds[1], rel=0.1)


# Without a device


def test_short_operators_are_the_cost_of_calling_them():
    result = bottleneck(trace=on_cpu(*[("aten::add", 5 * US)] * 500))
    assert result.name == bottlenecks.LAUNCHES
    assert "500 operators" in result.why


@pytest.mark.parametrize(
    ("name", "right"), [("aten::addmm", bottlenecks.COMPUTE), ("aten::gelu", bottlenecks.BANDWIDTH)]
)
def test_long_operators_are_judged_by_their_name_where_nothing_else_is_known(name, right):
    assert bottleneck(trace=on_cpu((name, 5 * MS))).name == right


def test_a_precision_with_a_higher_peak_is_the_advice_and_its_gain_a_number():
    trace, work = on_cpu(("aten::mm", 10 * MS)), Work((Operator("mm", 9e9, 1e6),))
    faster = bottleneck(trace=trace, work=work, peaks=machine_peaks(bf16=4e12))
    assert "bf16" in faster.advice
    assert faster.gain == pytest.approx(4, rel=0.01)
    slower = bottleneck(trace=trace, work=work, peaks=machine_peaks(bf16=0.5e12))
    assert "bf16" not in slower.advice
    assert slower.gain == pytest.approx(10 / 9, rel=0.01)


def test_a_long_gap_is_a_wait_and_says_where():
    result = bottleneck(trace=on_cpu(("aten::mm", 2 * MS), gap=("log", 6 * MS)))
    assert result.name == bottlenecks.SYNCHRONISATION
    assert "in log" in result.why
    assert result.gain == pytest.approx(4, rel=0.05)


# Splits


def test_a_loader_that_waits_reads_and_one_that_computes_prepares():
    slow = split(io=50, synthetic=1000, full=48, io_cores=0.1)
    assert judged(slow).bottleneck.name == bottlenecks.READ
    assert judged(split(io=50, synthetic=1000, full=48)).bottleneck.name == bottlenecks.PREPARE


def test_reading_ahead_should_gain_what_hides_behind_the_step():
    result = judged(split(io=100, synthetic=100, full=50, io_cores=0.1)).bottleneck
    assert "1 worker" in result.advice
    assert result.gain == pytest.approx(2)
    assert "4 workers" in judged(split(io=25, synthetic=100, full=20, io_cores=0.1)).bottleneck.advice


def test_contention_is_full_far_below_both_though_they_overlap():
    side_by_side = {"wait_s": 0.002, "full_cores": 2.0}
    result = judged(split(io=100, synthetic=60, full=35, **side_by_side)).bottleneck
    assert result.name == bottlenecks.CONTENTION
    assert result.gain == pytest.approx(60 / 35)
    near = judged(split(io=100, synthetic=60, full=58, **side_by_side))
    assert bottlenecks.CONTENTION not in {finding.name for finding in near.findings}


# What it says


def test_a_report_shows_the_bottleneck_advice_gain_and_all_causes():
    report = bottlenecks.investigate(Evidence(trace=SimulatedRun(load_s=20 * MS).trace()))
    for text in (str(report), report._repr_html_()):
        assert bottlenecks.LOADING in text
        assert "×" in text
    assert report.findings[0] == report.bottleneck
    assert all(finding.name and finding.why for finding in report.findings)
    assert all(0 <= finding.share <= 1 <= (finding.gain or 1) for finding in report.findings)


def test_the_breakdown_of_a_step_adds_up():
    trace = on_cpu(("aten::mm", 3 * MS), *[("aten::add", 4 * US)] * 100, load_s=2 * MS, gap=("log", 4 * MS))
    breakdown = StepBreakdown.of(trace)
    parts = breakdown.wait_s + breakdown.gap_s + breakdown.launch_s + breakdown.product_s + breakdown.other_s
    assert parts == pytest.approx(breakdown.step_s)
    assert breakdown.n_calls == 101
