import pytest

from dltutorial.course.explorers.device import launches as make
from dltutorial.course.explorers.device import step_us
from dltutorial.errors import CourseError


@pytest.mark.parametrize(("start_s", "work_s"), [(7e-6, 1e-7), (2.5e-6, 4e-5), (1e-6, 1e-6)])
def test_a_queue_filled_and_emptied_one_by_one_takes_as_long(start_s, work_s):
    started = finished = 0.0
    for _ in range(1000):
        started += start_s
        finished = max(started, finished) + work_s
    assert step_us(1000, start_s, work_s, beside=True) == pytest.approx(finished)
    assert step_us(1000, start_s, work_s, beside=False) == pytest.approx(1000 * (start_s + work_s))


def test_a_launch_bound_step_gains_and_one_full_of_work_does_not():
    explorer = make(400, 8e-6, 2e-6)
    assert "eager 3.2 ms, replayed 800 µs, 4.00 × as fast" in explorer.picture(work=0.01).text
    full = explorer.picture(work=1000).text
    assert "1.00 × as fast" in full
    assert "100% of the eager step" in full
    assert "2.50 × as fast" in explorer.picture(work=2, beside=False).text  # (8 + 2) / (2 + 2)


@pytest.mark.parametrize("numbers", [(400, -1e-6, 1e-6), (400, 1e-6, float("nan"))])
def test_what_cannot_be_gets_one_line(numbers):
    with pytest.raises(CourseError, match="give a positive, finite number"):
        make(*numbers)


def test_a_measured_number_beyond_the_usual_range_still_has_a_slider():
    assert make(3, 1e-3, 1e-9).picture().text.count("3 operations") == 1
    assert "2,000,000 operations" in make(2_000_000, 1e-6, 1e-6).picture().text
