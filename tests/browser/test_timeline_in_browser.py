"""The timeline in a real browser, as a notebook shows it and as a page of its own, without network."""

import nbformat
import pytest

from dltutorial.course import site
from dltutorial.profile.events import Event, Trace, TraceRow
from dltutorial.profile.timeline import Timeline, script_hash

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

EVIL = "</script><script>window.harmed=1</script><img src=x onerror=window.harmed=1>"
ROWS = (TraceRow("thread 1"), TraceRow("GPU 0 stream 7", 0))
GUTTER, AXIS, LANE = 118, 20, 17


def steps(n, step_s=0.01, name=EVIL):
    """Steps of a range, a wait for half of it, and a kernel in the other half."""
    events = []
    for start_s in (step_s * index for index in range(n)):
        events.append(Event("step", "range", start_s, step_s, 0))
        events.append(Event("load", "range", start_s, step_s / 2, 0))
        events.append(Event(name, "kernel", start_s + step_s / 2, step_s / 2, 1))
    return Trace.of(events, ROWS)


@pytest.fixture
def page(browser):
    """A window; an error in a script, or anything asked of a network, fails the test."""
    window = browser.new_page(viewport={"width": 1000, "height": 700})
    wrong = []
    window.on("pageerror", lambda error: wrong.append(str(error)))
    window.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    window.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    yield window
    window.close()
    assert not wrong


def opened(page, tmp_path, timeline):
    """The timeline as a page of its own; returns its canvas."""
    (tmp_path / "timeline.html").write_text(timeline.page())
    page.goto((tmp_path / "timeline.html").as_uri())
    page.wait_for_selector("canvas[data-ready]")
    return page.locator("canvas")


def view(canvas):
    """First and last second in view, boxes drawn."""
    data = canvas.evaluate("canvas => ({...canvas.dataset})")
    return float(data["from"]), float(data["to"]), int(data["drawn"])


def pixel(canvas, x, y):
    return canvas.evaluate(
        "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3)", [x, y]
    )


def test_boxes_are_where_they_belong_in_the_colour_of_their_kind(page, tmp_path):
    canvas = opened(page, tmp_path, Timeline(steps(1)))
    start, end, drawn = view(canvas)
    assert (start, drawn) == (0, 3)
    assert 0.01 <= end < 0.0102
    width = canvas.evaluate("canvas => canvas.clientWidth") - GUTTER
    in_load, in_kernel = GUTTER + width * 0.4, GUTTER + width * 0.9
    assert pixel(canvas, in_load, AXIS + 2) == [0, 0x72, 0xB2]
    assert pixel(canvas, in_load, AXIS + LANE + 2) == [0xF0, 0xE4, 0x42]
    assert pixel(canvas, in_kernel, AXIS + 2 * LANE + 2) == [0xD5, 0x5E, 0]
    assert pixel(canvas, in_kernel, AXIS + LANE + 2) == [0, 0, 0]
    assert page.locator(".legend").locator("span").all_inner_texts() == ["range", "waiting for input", "kernel"]


def test_pointing_at_a_box_tells_its_name_and_length_and_an_evil_name_stays_text(page, tmp_path):
    canvas = opened(page, tmp_path, Timeline(steps(1), steps(1), title=EVIL))
    canvas.hover(position={"x": 900, "y": AXIS + 2 * LANE + 5})
    tip = page.locator("#tip").inner_text()
    assert tip.startswith(EVIL + "\nkernel, 5.")
    assert " ms, from 5.0" in tip
    canvas.hover(position={"x": 900, "y": AXIS + LANE + 5})
    assert not page.locator("#tip").is_visible()
    assert page.locator("h1").inner_text() == EVIL
    assert page.evaluate("window.harmed") is None
    assert page.locator("img").count() == 0


def test_wheel_zooms_where_the_pointer_is_drag_and_double_click_move_the_view(page, tmp_path):
    canvas = opened(page, tmp_path, Timeline(steps(20)))
    whole = view(canvas)
    canvas.hover(position={"x": GUTTER + 400, "y": 50})
    page.mouse.wheel(0, -300)
    assert view(canvas) == whole, "without focus the wheel is the page's"
    canvas.click(position={"x": GUTTER + 400, "y": 50})
    page.mouse.wheel(0, -300)
    start, end, drawn = zoomed = view(canvas)
    assert 0 < start < end < whole[1]
    assert drawn < whole[2]
    page.mouse.down()
    page.mouse.move(GUTTER + 300, 50)
    page.mouse.up()
    assert view(canvas)[0] > zoomed[0]
    assert view(canvas)[1] - view(canvas)[0] == pytest.approx(end - start)
    canvas.dblclick(position={"x": GUTTER + 200, "y": AXIS + 5})
    assert view(canvas)[1] - view(canvas)[0] == pytest.approx(1.1 * 0.01, rel=1e-3)


def test_keys_zoom_move_and_show_all_again(page, tmp_path):
    canvas = opened(page, tmp_path, Timeline(steps(20)))
    whole = view(canvas)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "lanes"
    page.keyboard.press("+")
    zoomed = view(canvas)
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) / 1.5)
    page.keyboard.press("ArrowRight")
    assert view(canvas)[0] > zoomed[0]
    page.keyboard.press("ArrowLeft")
    assert view(canvas)[:2] == pytest.approx(zoomed[:2])
    page.keyboard.press("-")
    assert view(canvas)[:2] == pytest.approx(whole[:2])
    for _ in range(60):
        page.keyboard.press("+")
    assert 0 < view(canvas)[1] - view(canvas)[0] < 1e-6
    page.keyboard.press("0")
    assert view(canvas) == whole
    assert page.locator("#view").inner_text() == "0 to 202.0 ms"


def test_in_a_frame_it_lives_too_and_cannot_reach_the_notebook(page):
    page.set_content(f"<p>a notebook</p>{Timeline(steps(3), steps(2), names=('naive', 'tuned'))._repr_html_()}")
    frame = page.frame_locator("iframe")
    frame.locator("canvas[data-ready]").wait_for()
    assert view(frame.locator("canvas"))[2] == 15
    assert frame.locator("h2").first.inner_text() == "What changed"
    assert frame.locator("canvas").get_attribute("aria-label").startswith("Timeline: timeline of 15 events, naive")
    reached = frame.locator("body").evaluate("() => { try { return parent.document.title } catch { return null } }")
    assert reached is None
    fits = frame.locator("summary").evaluate("summary => summary.getBoundingClientRect().bottom <= innerHeight")
    assert fits, "the summary of the tables is cut off"


@pytest.mark.parametrize(("allowed", "alive"), [(True, True), (False, False)], ids=["named", "not named"])
def test_in_a_page_that_forbids_scripts_it_lives_if_its_hash_is_named(browser, tmp_path, allowed, alive):
    policy = "default-src 'none'; style-src 'unsafe-inline'" + f"; script-src {script_hash()}" * allowed
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{head}{Timeline(steps(3))._repr_html_()}")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("canvas[data-ready]" if alive else ".no-script").wait_for()
    assert frame.locator(".no-script").is_visible() != alive
    page.close()


def test_without_its_script_the_page_says_so_and_keeps_the_tables(browser, tmp_path):
    (tmp_path / "timeline.html").write_text(Timeline(steps(3)).page())
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "timeline.html").as_uri())
    assert page.locator(".no-script").is_visible()
    assert not page.locator("canvas").is_visible()
    page.locator("summary").click()
    assert "50%" in page.locator("details").inner_text()
    context.close()


def test_dark_and_light_follow_the_readers_choice(page, tmp_path):
    opened(page, tmp_path, Timeline(steps(1)))
    for scheme, back in (("dark", "rgb(17, 17, 17)"), ("light", "rgb(255, 255, 255)")):
        page.emulate_media(color_scheme=scheme)
        assert page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor") == back


def test_a_hundred_thousand_events_draw_no_more_boxes_than_there_are_pixels(page, tmp_path):
    canvas = opened(page, tmp_path, Timeline(steps(34_000, name="gemm")))
    start, end, drawn = view(canvas)
    assert end - start > 340
    assert 500 < drawn < 3 * 1000
    canvas.focus()
    for _ in range(25):
        page.keyboard.press("+")
    start, end, drawn = view(canvas)
    assert drawn == pytest.approx(3 * (end - start) / 0.01, abs=4)


def test_in_the_page_of_an_executed_notebook_it_lives(browser, tmp_path):
    cell = nbformat.v4.new_code_cell("timeline")
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": Timeline(steps(3))._repr_html_()})]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "02_profile.ipynb")
    chapter = {"notebook": "02_profile.ipynb", "chapter": "02", "status": "finished", "claims": {}}
    about = {"preset": "smoke", "machine": "a CPU", "date": "2026-01-02", "versions": {}, "chapters": [chapter]}
    site.write(tmp_path, about, {})
    page = browser.new_page()
    page.goto((tmp_path / "02_profile.html").as_uri())
    page.frame_locator("iframe").locator("canvas[data-ready]").wait_for()
    page.close()
