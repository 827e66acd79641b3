import pytest

from dltutorial.profile.timing import Timing, alternate, duration


def test_variants_take_turns_after_one_warm_up_each():
    calls = []
    variants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    timings = alternate(variants, repeats=3, sample_s=0, device="cpu")
    assert calls == list("ab" * 5)  # warm-up, a first look, three samples
    assert {name: len(timing.samples_s) for name, timing in timings.items()} == {"a": 3, "b": 3}


def test_the_median_ignores_one_slow_moment():
    timing = Timing((0.1, 0.2, 9.0))
    assert (timing.median_s, timing.best_s) == (0.2, 0.1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5, "1.5 s"), (0.00123, "1.23 ms"), (4.56e-6, "4.56 µs"), (7e-9, "7 ns")]
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text
