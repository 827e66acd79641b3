import pytest
import torch

from dltutorial.profile import ranges
from dltutorial.profile.ranges import annotate


@pytest.fixture
def profiler_calls(monkeypatch):
    """Names in the order in which torch's profiler gets them, "/name" at their end."""
    calls = []

    class Recorded:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            calls.append(self.name)

        def __exit__(self, *error):
            calls.append(f"/{self.name}")

    monkeypatch.setattr(torch.profiler, "record_function", Recorded)
    return calls


def test_a_range_that_is_off_does_not_reach_the_profiler(profiler_calls):
    with annotate("forward"):
        pass
    assert profiler_calls == []
    assert ranges._MAKE.get() is None


def test_on_ranges_nest_and_off_again_after_the_block(profiler_calls):
    with ranges.enabled():
        assert ranges._MAKE.get() is not None
        with annotate("step"), annotate("forward"):
            pass
    with annotate("late"):
        pass
    assert profiler_calls == ["step", "forward", "/forward", "/step"]


def test_a_range_is_closed_by_an_error_which_goes_on(profiler_calls):
    with ranges.enabled(), pytest.raises(ZeroDivisionError), annotate("step"):
        _ = 1 / 0
    assert profiler_calls == ["step", "/step"]


def test_a_range_in_a_compiled_function_breaks_no_graph(profiler_calls):
    @torch.compile(backend="eager", fullgraph=True)
    def double(x):
        with annotate("inner"):
            return 2 * x

    assert double(torch.ones(1)).item() == 2
    with ranges.enabled():
        assert double(torch.ones(1)).item() == 2
    ours = [name for name in profiler_calls if "dynamo_timed" not in name]  # torch 2.6 names ranges of its compiler
    assert ours == []
