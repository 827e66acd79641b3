"""What the profiler's tools refuse, each with one clear line: (what it is, what is tried in a folder, words of it)."""

import pytest
import torch

from dltutorial.errors import CourseError
from dltutorial.profile import throughput, work
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.probes import Figure
from dltutorial.profile.trace_breakdown import StepBreakdown

BATCH = (torch.zeros(4, 2), torch.zeros(4))
RATE = Figure(1.0, 1.0, "", "")
HERE = Peaks("a machine", "cpu", "", {"fp32": RATE, "bf16": None}, RATE, {})
NAMELESS = Trace.of([Event("aten::mm", "operator", 0.0, 1e-3, 0)], ("thread 1",))


def split(loader):
    return lambda folder: throughput.measure(loader, lambda batch: None)


REFUSED = [
    ("a split of an iterator that ends", split(iter([BATCH] * 5)), "give a list or a DataLoader"),
    ("a split of an empty loader", split([]), "gave no batch"),
    ("a breakdown without steps", lambda folder: StepBreakdown.of(NAMELESS), "holds no step"),
    ("work without torch", lambda folder: work.count(lambda: None), "called no operator"),
    ("a peak of bf16", lambda folder: HERE.predict_s(1, 1, "bf16"), "is not available on this machine"),
]


@pytest.mark.parametrize(("tried", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_is_refused_in_one_line_and_leaves_no_file(tried, words, tmp_path):
    with pytest.raises(CourseError) as caught:
        tried(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
