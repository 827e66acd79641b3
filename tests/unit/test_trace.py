import gzip
import json

import pytest
import torch
from torch.profiler import record_function

from dltutorial.profile import trace, trace_summary
from dltutorial.profile.events import Event, Trace

HOST = ("thread 1",)
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def chrome(name, category, start_us, duration_us, pid=10, tid=11, **more):
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_us,
        "dur": duration_us,
        "pid": pid,
        "tid": tid,
        **more,
    }


def written(path, events):
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def of(*events, rows=HOST):
    return Trace.of([Event(*event, *([0] if len(event) == 4 else [])) for event in events], rows)


# Reading


def test_reading_gives_seconds_since_the_first_event_and_named_rows(tmp_path):
    file = written(
        tmp_path / "a.json",
        [
            {"ph": "M", "name": "process_name", "pid": 10, "args": {"name": "python"}},
            {"ph": "i", "name": "mark", "ts": 1, "pid": 10, "tid": 11},
            chrome("flow", "ac2g", 0, 1),
            chrome("gemm", "kernel", 1_000_500, 200, pid=0, tid=7),
            chrome("ProfilerStep#3", "user_annotation", 1_000_000, 1000),
            chrome("aten::mm", "cpu_op", 1_000_100, 100),
            chrome("aten::add", "cpu_op", 999_000, 10, tid=12),
        ],
    )
    result = trace.read(file)
    assert result.rows == ("thread 1", "thread 2", "GPU 0 stream 7")
    assert [(event.name, event.category, event.row) for event in result.events] == [
        ("aten::add", "operator", 1),
        ("step", "range", 0),
        ("aten::mm", "operator", 0),
        ("gemm", "kernel", 2),
    ]
    assert [event.start_s for event in result.events] == pytest.approx([0, 1e-3, 1.1e-3, 1.5e-3], abs=1e-9)
    assert result.span_s == pytest.approx(2e-3)


def test_packed_and_plain_files_give_the_same_trace(tmp_path):
    plain = written(tmp_path / "a.json", [chrome("x", "cpu_op", 5, 3)])
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert trace.read(plain) == trace.read(packed)


# Sums


def test_range_times_are_inclusive_and_count_recursion_once():
    result = of(
        ("step", "range", 0.0, 10.0),
        ("forward", "range", 1.0, 4.0),
        ("forward", "range", 2.0, 3.0),
        ("step", "range", 10.0, 6.0),
        ("aten::mm", "operator", 2.0, 1.0),
    )
    assert trace_summary.range_times(result) == (("step", "range", 2, 16.0), ("forward", "range", 1, 4.0))


def test_self_time_leaves_out_what_an_operator_calls_and_adds_up_to_the_busy_time():
    result = of(
        ("linear", "operator", 0.0, 10.0),
        ("t", "operator", 1.0, 2.0),
        ("addmm", "operator", 3.0, 6.0),
        ("copy", "operator", 4.0, 1.0),
        ("addmm", "operator", 20.0, 2.0),
        ("linear", "operator", 0.0, 30.0, 1),  # another thread: nests in nothing above
        rows=("thread 1", "thread 2"),
    )
    totals = {(total.name, total.calls): total.seconds for total in trace_summary.operator_times(result)}
    assert totals == {("linear", 2): 32.0, ("addmm", 2): 7.0, ("t", 1): 2.0, ("copy", 1): 1.0}
    assert next(iter(totals)) == ("linear", 2)


def test_device_idle_share_is_of_the_steps_and_counts_streams_that_overlap_once():
    rows = (*HOST, "GPU 0 stream 7", "GPU 0 stream 8")
    result = of(
        ("aten::randn", "operator", 0.0, 10.0),  # before the steps: not counted
        ("step", "range", 10.0, 10.0),
        ("k", "kernel", 11.0, 3.0, 1),
        ("copy", "copy", 13.0, 2.0, 2),
        ("k", "kernel", 19.0, 6.0, 1),  # still running when the host is done
        ("step", "device range", 11.0, 14.0, 1),  # a label, no work
        rows=rows,
    )
    assert trace_summary.device_idle_share(result) == pytest.approx(1 - 10 / 15)


def test_device_idle_share_is_not_available_without_device_events():
    result = of(("step", "range", 0.0, 1.0))
    assert trace_summary.device_idle_share(result) is None
    assert "not available" in str(trace_summary.table(result))


@pytest.mark.parametrize("name", ["load", NEXT])
@pytest.mark.parametrize("step", [(0.0, 10.0), (4.0, 6.0)], ids=["inside", "between"])
def test_input_wait_share_is_the_same_whether_steps_load_inside_or_between(name, step):
    start, length = step
    result = of(
        ("step", "range", start, length),
        (name, "range", 0.0, 4.0),
        ("step", "range", 10 + start, length),
        (name, "range", 10.0, 4.0),
        ("load", "range", 0.0, 20.0, 1),  # a thread that loads ahead
        rows=("thread 1", "thread 2"),
    )
    assert trace_summary.input_wait_share(result) == pytest.approx(0.4)


def test_changes_are_per_step_and_name_what_came_and_went():
    before = of(("step", "range", 0.0, 10.0), ("load", "range", 0.0, 8.0), ("aten::old", "operator", 8.0, 1.0))
    after = of(
        *(("step", "range", 4.0 * n, 4.0) for n in range(2)),
        *(("load", "range", 4.0 * n, 1.0) for n in range(2)),
        *(("aten::new", "operator", 4.0 * n + 1, 3.0) for n in range(2)),
    )
    assert trace_summary.changes(before, after, ("naive", "tuned")).rows == (
        ("load", "range", "8 s", "1 s", "0.12 ×"),
        ("step", "range", "10 s", "4 s", "0.40 ×"),
        ("aten::new", "operator", "0 ns", "3 s", "new"),
        ("aten::old", "operator", "1 s", "0 ns", "gone"),
    )


# Taking


@pytest.fixture(scope="module")
def taken():
    """A real trace of a tiny model, two steps after three of warm-up, and how often it was called."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    batches = iter(torch.utils.data.DataLoader(torch.randn(20, 8), batch_size=4))
    calls = []

    def run_step():
        calls.append(len(calls))
        x_BC = next(batches)
        with record_function(f"call {calls[-1]}"), record_function("forward"):
            loss = model(x_BC).square().mean()
        with record_function("backward"):
            loss.backward()

    return trace.take(run_step, steps=2), calls


def test_a_real_trace_holds_the_steps_after_warm_up(taken):
    result, calls = taken
    assert calls == [0, 1, 2, 3, 4]
    times = {total.name: total for total in trace_summary.range_times(result)}
    assert len(result.steps) == times["step"].calls == times["forward"].calls == times["backward"].calls == 2
    assert {name for name in times if name.startswith("call")} == {"call 3", "call 4"}
    assert times["step"].seconds > times["forward"].seconds + times["backward"].seconds
    assert times[NEXT].calls == 2
    assert 0 < trace_summary.input_wait_share(result) < 1


def test_a_real_trace_names_the_operators_of_the_model(taken):
    result, _ = taken
    totals = {total.name: total for total in trace_summary.operator_times(result)}
    assert totals["aten::addmm"].calls == 4
    assert totals["aten::gelu"].calls == 2
    assert all(total.seconds >= 0 for total in totals.values())
