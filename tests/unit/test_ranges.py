import pytest
import torch

from dltutorial.profile import ranges
from dltutorial.profile.ranges import annotate


@pytest.fixture
def seen(monkeypatch):
    """Names in the order in which torch's profiler is told of them, "/name" at their end."""
    told = []

    class Recorded:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            told.append(self.name)

        def __exit__(self, *error):
            told.append(f"/{self.name}")

    monkeypatch.setattr(torch.profiler, "record_function", Recorded)
    return told


def test_off_a_range_tells_nobody(seen):
    with annotate("forward"):
        pass
    assert seen == []
    assert not (ranges._MAKE.get() is not None)


def test_on_ranges_nest_and_off_again_after_the_block(seen):
    with ranges.enabled():
        assert ranges._MAKE.get() is not None
        with annotate("step"), annotate("forward"):
            pass
    with annotate("late"):
        pass
    assert seen == ["step", "forward", "/forward", "/step"]


def test_a_range_is_closed_by_an_error_which_goes_on(seen):
    with ranges.enabled(), pytest.raises(ZeroDivisionError), annotate("step"):
        _ = 1 / 0
    assert seen == ["step", "/step"]


def test_a_range_in_a_compiled_function_breaks_no_graph(seen):
    @torch.compile(backend="eager", fullgraph=True)
    def double(x):
        with annotate("inner"):
            return 2 * x

    assert double(torch.ones(1)).item() == 2
    with ranges.enabled():
        assert double(torch.ones(1)).item() == 2
    assert [name for name in seen if "dynamo_timed" not in name] == []  # torch 2.6 tells of its compiler's own ranges
