import json
import re

import numpy as np
import pytest

from dltutorial.profile import timeline
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.timeline import Timeline, script_hash

ROWS = ("thread 1", "GPU 0 stream 7")
EVIL = '</script><script>window.harmed=1</script><img src=x onerror="window.harmed=1">&amp;"\'<!--<script>'
BEFORE = Trace.of(
    [
        Event("step", "range", 0.0, 10e-3, 0),
        Event("load", "range", 0.0, 6e-3, 0),
        Event("aten::mm", "operator", 6e-3, 3e-3, 0),
        Event("aten::t", "operator", 9e-3, 1e-3, 0),
        Event("gemm", "kernel", 7e-3, 2e-3, 1),
    ],
    ROWS,
)
AFTER = Trace.of([Event("step", "range", 0.0, 5e-3, 0), Event("load", "range", 0.0, 1e-3, 0)], ROWS[:1])


def data_in(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def boxes_in(data):
    """[(lane's label, name, kind, start in s, length in s)], as timeline.js reads them."""
    result = []
    for lane in data["lanes"]:
        for start_ns, length_ns, index in lane["boxes"]:
            name, kind = data["names"][index]
            result.append((lane["label"], name, data["kinds"][kind][0], start_ns * 1e-9, length_ns * 1e-9))
    return result


def test_a_page_holds_every_event_in_lanes_from_outer_to_inner():
    result = boxes_in(data_in(Timeline(BEFORE).page()))
    assert [event[:3] for event in result] == [
        ("thread 1", "step", "range"),
        ("", "load", "waiting for input"),
        ("", "aten::mm", "operator"),
        ("", "aten::t", "operator"),
        ("GPU 0 stream 7", "gemm", "kernel"),
    ]
    expected = [pytest.approx(event[2:4], abs=1e-9) for event in sorted(BEFORE.events, key=order)]
    assert [event[3:] for event in result] == expected


def order(event):
    return event.row, ["step", "load", "aten::mm", "aten::t", "gemm"].index(event.name)


def test_no_two_events_of_a_lane_overlap_even_where_they_do_not_nest():
    rng = np.random.default_rng(0)
    events = [Event(str(i), "kernel", *rng.uniform(0, [1.0, 0.2]), 0) for i in range(300)]
    lanes = timeline.lanes(Trace.of(events, ROWS).events, "row")
    assert sum(len(lane.events) for lane in lanes) == 300
    for lane in lanes:
        for one, next_one in zip(lane.events, lane.events[1:], strict=False):
            assert one.end_s <= next_one.start_s + 1e-9
    assert [lane.label for lane in lanes] == ["row"] + [""] * (len(lanes) - 1)


def test_an_evil_name_can_neither_end_a_script_nor_open_a_tag():
    evil = Trace.of([Event(EVIL, "range", 0.0, 1.0, 0), Event("step", "range", 1.0, 1.0, 0)], [EVIL])
    page = Timeline(evil, AFTER, title=EVIL, names=(EVIL, "b")).page()
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert boxes_in(data_in(page))[0][1] == EVIL
    frame = Timeline(evil, title=EVIL)._repr_html_()
    assert frame.count("<") == 2
    assert 'sandbox="allow-scripts"' in frame


def test_a_page_lets_its_own_script_run_and_nothing_else():
    page = Timeline(BEFORE).page()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src {script_hash()}"
    assert not re.search(r"https?://|\bon\w+=|<link|@import|url\(", page.replace('content="', ""))


def test_the_tables_say_what_the_picture_shows():
    page = Timeline(BEFORE).page()
    details = page[page.index("<details>") : page.index("</details>")]
    for text in ("step", "load", "aten::mm", "gemm", "3 ms", "60%", "80%"):
        assert text in details, text
    assert "5 events" in re.search(r'aria-label="([^"]*)"', page)[1]
    assert "What changed" not in page


def test_two_traces_name_what_changed_with_its_ratio():
    both = Timeline(BEFORE, AFTER, names=("naive", "tuned"))
    assert both.changes.rows[:3] == (
        ("load", "range", "6 ms", "1 ms", "0.17 ×"),
        ("step", "range", "10 ms", "5 ms", "0.50 ×"),
        ("aten::mm", "operator", "3 ms", "0 ns", "gone"),
    )
    assert Timeline(AFTER, BEFORE).changes.rows[2][-1] == "new"
    data = data_in(both.page())
    assert [lane["label"] for lane in data["lanes"] if lane["label"]] == [
        "naive: thread 1",
        "naive: GPU 0 stream 7",
        "tuned: thread 1",
    ]
    assert data["end_ns"] == 10_000_000
