"""The slides of a chapter in Chromium, from a file: no network, 12 to 18 slides, and each fits on the screen."""

import os
import shutil
import subprocess
import sys

import pytest
from folders import ARTIFACTS, ROOT, skip_unless_required

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
WIDE, HIGH = 1280, 720
# How far the visible parts of the present slide reach, in pixels.
REACH = """(() => { const parts = [...Reveal.getCurrentSlide().querySelectorAll('*')].filter(e => !e.closest('.notes'))
    .map(e => e.getBoundingClientRect());
    return [Math.max(...parts.map(e => e.right)), Math.max(...parts.map(e => e.bottom))] })()"""


@pytest.fixture
def deck(tmp_path):
    """The slides of chapter 09, in a folder of their own that was moved after it was made."""
    if not (ARTIFACTS / "chapters" / "first" / "run.json").is_file():
        skip_unless_required("chapters", "the chapters were not executed: make test executes them")
    if not (ROOT / ".venv" / "node" / "node_modules" / "reveal.js").is_dir():
        skip_unless_required("browser", "reveal.js is not installed (make slides)")
    env = os.environ | {"DLTUTORIAL_RUNS": str(ARTIFACTS / "chapters")}
    command = [sys.executable, "book/slides.py", tmp_path / "made", "", "notebooks/09_data_parallel.ipynb"]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    shutil.move(tmp_path / "made", tmp_path / "moved")
    return tmp_path / "moved" / "09_data_parallel.slides.html"


def test_slides_need_no_network_fit_on_the_screen_and_have_notes(deck, browser):
    page = browser.new_page(viewport={"width": WIDE, "height": HIGH})
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(asked.url))
    page.goto(deck.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    n_slides = page.evaluate("Reveal.getTotalSlides()")
    assert 12 <= n_slides <= 18
    for number in range(n_slides):
        page.evaluate(f"Reveal.slide({number}, 0, 99)")
        right, bottom = page.evaluate(REACH)
        assert right <= WIDE and bottom <= HIGH, f"slide {number + 1}"
    assert page.locator("img.dlt-figure").count() >= 2
    assert page.locator("math mfrac").count() > 0
    with page.expect_popup() as speaker:
        page.keyboard.press("s")
    speaker.value.get_by_text("Further reading").wait_for()  # in the notes of the last slide
    page.close()
    assert not wrong
