"""What each section of the report finds in records: the notebook's cells, run here without drawing."""

import dataclasses
import html
import types

import pytest
from cells import run
from reportpage import prediction, train_run

from dltutorial.course.checks import check
from dltutorial.profile import peaks
from dltutorial.profile.probes import Figure
from dltutorial.record import records
from dltutorial.train import run_lock


@pytest.fixture(autouse=True)
def no_peaks(monkeypatch):
    monkeypatch.setattr(peaks, "load", lambda folder=None: None)


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A file of records: ``book(chapter)`` writes; ``book.section(topic)`` is what the report makes of them."""
    file = tmp_path / "records.jsonl"
    file.touch()

    def writer(chapter, preset="smoke"):
        return records.Writer(chapter, preset, file).write

    def names(**more):
        return run(monkeypatch, "report", undrawn=["svg"], files=[file], **more)

    def section(topic):
        """Its finding, its tile, whether it is empty, and its HTML in one line, descriptions of charts included."""
        made = names()
        (found,) = [one for one in made["page"] if one[0] == topic]
        (body,) = [shown for shown in made["displayed"] if f'id="{made["anchor"](topic)}"' in shown]
        body = html.unescape(" ".join(body.split())).replace("\u00a0", " ")
        return types.SimpleNamespace(finding=found[1], tile=found[2], empty=found[3], body=body)

    writer.names, writer.section = names, section
    return writer


def test_cached_peaks_become_a_roofline(book, monkeypatch):
    figures = {
        "machine": "a test", "device": "cpu", "threads": 2, "time": "2026-01-02",
        "matmul": {"fp32": Figure(2e11, 1.9e11, 5, "FLOP/s", "256 × 256"), "bf16": None},
        "memory": Figure(2e10, 1.8e10, 5, "bytes/s", "a copy"), "disk": {"cold_sequential": None},
    }  # fmt: skip
    others_ = {field.name: None for field in dataclasses.fields(peaks.Peaks)}
    known = peaks.Peaks(**others_ | figures)
    monkeypatch.setattr(peaks, "load", lambda folder=None: known)
    section = book.section("This machine")
    assert section.finding == "Products reach 200 GFLOP/s in fp32, copies 20 GB/s"
    assert "matmul bf16</td>" in section.body
    assert "not available" in section.body
    assert "1,560 ×" in section.body  # an A100's 312 TFLOP/s


def test_recorded_peaks_become_a_roofline_too(book):
    for what, value in (("matmul fp32", 1e11), ("matmul bf16", 2e11), ("memory copy", 2e10)):
        book("00")(f"peak {what}", value, "FLOP/s")
    section = book.section("This machine")
    assert section.finding == "Products reach 200 GFLOP/s in bf16, copies 20 GB/s"
    assert "Under 5 FLOP per byte" in section.body


def test_runs_are_drawn_with_their_last_ratio(book, tmp_path):
    train_run(tmp_path / "good", [None, 0.9, 0.5])
    train_run(tmp_path / "cut", [0.8, 0.75], status="interrupted")
    train_run(tmp_path / "silent", [None])
    train_run(tmp_path / "killed", [0.9, 0.85], status="running")
    train_run(tmp_path / "at work", [0.9, 0.8], status="running")
    train_run(tmp_path / ".good.overwritten", [0.1])  # a kill has left it
    (tmp_path / "good" / "progress.jsonl").open("a").write('{"step": 40, "sco')  # being written
    with run_lock.owned(tmp_path / "at work"):
        section = book.section("Forecast")
    assert section.body.count("✗ ended without finishing") == section.body.count("… running") == 1
    assert section.finding == "The best forecast has 0.50 of persistence's error"
    assert "– interrupted" in section.body
    assert "silent" not in section.body
    assert "good 0.50" in section.body
    assert str(tmp_path) not in section.body


def test_loaders_of_chapter_03_are_compared_with_the_first_and_with_predictions(book):
    for what, value, told in (("naive", 20.0, 25.0), ("map", 500.0, None), ("best", 400.0, 380.0), ("copy", 600, None)):
        book("03")(f"loader: {what}", value, "samples/s", predicted=told)
    section = book.section("Loaders")
    assert section.finding == "The best loader is 25 × as fast as the naive one"
    assert "naive 20 (predicted 25), map 500, best 400 (predicted 380)" in section.body
    assert "SC22 6.8" in section.body


def test_single_knobs_stand_beside_their_predictions(book):
    book("05")("compile_gain_stencil", 8.9, "×")
    book("06")("replay_gain", 2.8, "×", expected=2.7)
    section = book.section("Knobs")
    assert section.finding == "A compiled stencil gained 8.9 ×, replayed launches 2.8 ×"
    assert "replayed launches 2.80 (predicted 2.70)" in section.body
    assert "Mask R-CNN on 272 GPUs 1.70" in section.body


def test_the_own_ladder_stands_beside_the_published_ones(book):
    gains = {"baseline": 1.0, "only loader": 1.2, "only precision": 1.5, "+ precision": 1.7, "+ optimizer": 2.7}
    book("07")("ladder_gain", 2.7, "×", predicted=2.5, gains=gains, told=gains | {"+ optimizer": 2.5})
    section = book.section("Ladder")
    assert "own ladder: 2.7 × from baseline to best; published ones 4.6 to 9.2" in section.finding
    assert "baseline 1.0, loader 1.2, precision 1.7, optimizer 2.7" in section.body
    assert "2.5 × predicted" in section.body


def test_the_ladder_benchmark_counts_too_where_it_is_newer(book):
    book("07")("ladder_gain", 2.7, "×")
    for what, value in (("baseline", 10.0), ("only loader", 12.0), ("+ precision", 40.0)):
        book("bench")(what, value, "samples/s", bench="ladder", predicted=value)
    ((_, source, gains, _, total, total_told),) = book.names()["climbs"]()
    assert source == "bench ladder"
    assert total == total_told == 4.0
    assert gains == {"baseline": 1.0, "loader": 1.2, "precision": 4.0}


def test_published_ladders_are_those_of_the_literature(book):
    ends = {year: round(list(steps.values())[-1], 1) for year, steps in book.names()["published_gains"]().items()}
    assert ends == {"sc21": 6.3, "sc22": 9.2, "sc23": 4.6, "sc24": 6.2, "sc25": 7.0}


def test_what_the_ladders_title_says_is_so(book):
    """The U-Net (SC21, SC22) gains most from input, the ViT (SC23 to SC25) from half precision."""
    for year, gains in book.names()["published_gains"]().items():
        input_gain, half_gain = gains["loader"], gains["precision"] / gains["loader"]
        assert (input_gain > half_gain) == (year in ("sc21", "sc22"))


def test_ranks_compare_ways_to_average_gradients(book):
    for wrapper, seconds in (("naive", 0.3), ("torch DDP", 0.1)):
        book("09")("ddp_step_s", seconds, "s", wrapper=wrapper, world_size=2)
    book("08")(**prediction("ring_over_server", 1.0, 4.0, 5.0))
    section = book.section("Ranks")
    assert section.finding == "With naive gradients a step takes 3.0 × as long as with torch DDP"
    assert "a ring takes 5 × as long" in section.body


def test_efficiency_of_these_ranks_stands_beside_published_runs(book):
    for n, weak, strong in ((1, 0.2, 0.2), (8, 0.25, 0.05)):
        book("11")("timed step", weak, "s", arm="weak", ranks=n)
        book("11")("timed step", strong, "s", arm="strong", ranks=n)
    book("11")("simulated step", 0.4, "s", ranks=[1, 27_360], step_s=[0.1, 0.4])
    section = book.section("Scaling")
    assert section.finding == "Timed steps (weak) keep 80% of ideal on 8 ranks; Summit kept 91% on 27,360"
    assert "strong: 1 ranks 100%, 8 ranks 50%" in section.body
    assert "This machine's line is simulated" in section.body
    assert "DeepLabv3+ climate segmentation, 27360 V100: 91% published" in section.body


def test_the_scaling_benchmark_counts_too(book):
    for n, seconds in ((1, 0.1), (4, 0.2)):
        book("bench")(f"real training, ranks: {n}", seconds, "s", bench="scaling")
    assert "keep 50% of ideal on 4 ranks" in book.section("Scaling").finding


def test_weak_steps_alone_are_told_with_their_tile(book):
    for n, seconds in ((1, 0.1), (2, 0.125)):
        book("11")("timed step", seconds, "s", arm="weak", ranks=n)
    section = book.section("Scaling")
    assert section.finding.startswith("Timed steps (weak) keep 80% of ideal on 2 ranks")
    assert section.tile == ("80%", "of ideal on 2 ranks (timed steps (weak))")


def test_steps_against_batch_size_show_their_knee(book):
    book("12")("steps against batch", 100.0, "samples", s_min=50.0, steps={8: 700, 128: 90, "2048": 52})
    book("13")("critical_batch_size", 93.0, "samples", survey="lenses")
    book("13")("simple_noise_scale", 62.0, "samples", survey="lenses")
    section = book.section("Batch size")
    assert section.finding == "Beyond a batch of about 100 more samples hardly save steps: 50 remain"
    assert "batch 8: 700 updates, batch 128: 90 updates, batch 2,048: 52 updates" in section.body
    assert "1.5 ×" in section.body


def test_the_convergence_benchmark_counts_too(book):
    for what, value in (("sgd: batch 8", 700.0), ("sgd: batch 512", 60.0), ("sgd: S_min", 50.0), ("sgd: B_crit", 99.0)):
        book("bench")(what, value, "updates", bench="convergence")
    assert "about 99" in book.section("Batch size").finding


def test_leads_are_told_with_what_was_tuned(book):
    scores = {"Adam, rate tuned": [0.8, 0.82], "LAMB, rate tuned": [0.86, 0.88],
              "Adam, all tuned": [0.87, 0.87], "LAMB, all tuned": [0.86, 0.88]}  # fmt: skip
    book("14")("optimizer race", 0.0, "accuracy", scores=scores)
    section = book.section("Large batches")
    assert section.finding.endswith("+6.0 with rate tuned, +0.0 with all tuned")
    assert "Mikami et al. 2018" in section.body


def test_recipes_are_ranked_and_one_that_missed_the_target_has_no_time(book):
    about = {"task": "Task(target=0.9)", "kind": "measurement"}
    book("15")("time to solution", 9.0, "s", recipe="slow", device_s=9.0, seeds=2, reached=2, **about)
    book("15")("time to solution", 2.0, "s", recipe="quick", device_s=4.0, seeds=2, reached=2, **about)
    book("15")("time to solution", None, "s", recipe="lucky", device_s=None, seeds=2, reached=1, **about)
    section = book.section("Time to solution")
    assert section.finding == "2 of 3 recipes reach the target with every seed, the best in 2 s"
    assert [section.body.index(word) for word in ("quick", "slow", "not reached")] == sorted(
        section.body.index(word) for word in ("quick", "slow", "not reached")
    )


def test_times_to_solution_stand_beside_their_predictions(book):
    book("15")("median seconds: reference", 2.0, "s", predicted=1.0)
    assert "off by a factor of 2.0" in book.section("Time to solution").body


# Predictions, exercises, claims


def test_predictions_are_scored_in_factors(book):
    for row in (prediction("copy", 4.0, 1.1, 2.0), prediction("step", 0.1, 0.5, 0.4), prediction("x", 9, 1, 1, False)):
        book("00")(**row)
    section = book.section("Predictions")
    # Factors 2 and 4; the default does not count. The models' are 1.8, 1.25 and 1.
    assert section.finding == "Your guesses are off by 3 × in the median, the models by 1.2 ×"
    assert "9 (default)" in section.body
    assert "1 of 2 guesses lie within a factor of 2" in section.body
    assert "On the 2 questions that a model answered too, you were closer 0 times" in section.body


def test_a_guess_made_after_the_answer_does_not_count(book):
    for row in (
        prediction("copy", 9.0, 1.0, 1.0, False),
        prediction("copy", 5.0, 1.0, 1.0),
        prediction("copy", 1, 1, 1),
    ):
        book("00")(**row)
    assert "off by 5 ×" in book.section("Predictions").finding


def test_defaults_alone_have_no_score(book):
    book("00")(**prediction("copy", 4.0, 1.1, 2.0, touched=False))
    section = book.section("Predictions")
    assert "none was typed in" in section.finding
    assert section.tile is None
    assert "make lab" in section.body


def test_progress_and_parts_are_told(book):
    for chapter, guess in (("00", 8), ("01", 8), ("02", 8), ("08", 2), ("12", 2), ("15", 2)):
        book(chapter)(**prediction(f"q{chapter}", guess, 1.0, 1.0))
    body = html.unescape(book.section("Predictions").body)
    assert "In the first half of the course your median guess was 8 × off, in the second 2 ×" in body
    assert "II · Many devices" in body


def test_exercises_are_counted_by_part_with_their_attempts(book):
    for status, cases in (("not attempted", 0), ("wrong", 2), ("passed", 6), ("wrong", 1)):
        book("01")("training_step", kind="check", status=status, cases_passed=cases, cases=6)
    section = book.section("Exercises")
    n = len(dir(check))
    assert section.finding == f"1 of {n} exercises solved"
    assert 'class="number" data-head="checks">3<' in section.body  # a blank is no attempt
    assert 'data-head="solved at check">2<' in section.body  # solved once is solved
    assert "01 training_step: passed" in section.body
    assert section.body.count('role="img"') == n


def test_an_open_exercise_says_where_it_fails(book):
    book("08")("ring", kind="check", status="wrong", cases_passed=2, cases=6, failed="works for one rank")
    assert "works for one rank" in book.section("Exercises").body


def test_latest_claim_counts_and_says_how_often_it_held(book):
    for holds in (True, False, True):
        status = "shown" if holds else "failed"
        book("01")("loss falls", holds, kind="claim", status=status, evidence="1 → 0.3")
    book("01")("tensor cores win", None, kind="claim", status="not shown here", needs="a CUDA device")
    section = book.section("Claims")
    assert section.finding == "1 of 2 claims hold here, 1 not shown here for want of hardware"
    assert "2 of 3" in section.body
    assert "a CUDA device" in section.body


def test_a_claim_that_failed_is_in_plain_sight(book):
    book("01")("loss falls", False, kind="claim", status="failed", evidence="it rose")
    assert "it rose" in book.section("Claims").body.partition("<details>")[0]


def test_each_section_says_what_its_chapters_cannot_show_here(book):
    book("05")("it compiles on a GPU", None, kind="claim", status="not shown here", needs="a CUDA device")
    assert "1 claim needs other hardware" in book.section("Knobs").body  # of chapters 02, 04 to 06
    assert "Not shown here" not in book.section("Ladder").body


def test_a_claim_that_was_shown_needs_nothing_more(book):
    book("05")("it compiles", True, kind="claim", status="shown", needs="a compiler")
    assert "a compiler" not in book.section("Claims").body


def test_a_benchmark_shows_its_newest_medians_beside_predictions(book):
    for median in (9.0, 0.3):
        book("bench")("update", median, "s", bench="precision", predicted=0.2)
    book("bench")("odd", None, "s", bench="precision")
    section = book.section("Benchmarks")
    assert "300 ms" in section.body
    assert ">1.50<" in section.body
    assert "9 s" not in section.body
    assert "odd" not in section.body


def test_what_no_section_shows_is_listed(book):
    book("02")("gain of lean augmentation", 1.3, "×")
    book("10")("stopped_at", 4, "updates")
    section = book.section("Measurements")
    assert section.finding == "1 other quantities were recorded"
    assert "stopped_at" in section.body


def test_other_quantities_stand_by_chapter_with_three_digits(book):
    book("06")("a rate", 1.00764967848e11, "FLOP/s")
    book("03")("a time", 1000.0, "s", kind="run")
    book("04")("a share", 0.5, "of all")
    body = book.section("Measurements").body
    cells = [f'data-head="latest value">{text}</td>' for text in ("1,000", "0.5", "1.01e+11")]
    assert sorted(map(body.index, cells)) == [body.index(cell) for cell in cells]
