"""Every explorer in JupyterLab: sliders and choices by keyboard and mouse, words and picture follow, all is named."""

from pathlib import Path

import explorer_examples
import ipywidgets
import pytest
from notebook_page import IDLE, NARROW, WIDE, write_notebook
from playwright.sync_api import TimeoutError as TooLate
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]

HERE = str(Path(explorer_examples.__file__).parent)
MAKE = f"import sys\nsys.path.insert(0, {HERE!r})\nfrom explorer_examples import examples\nmade = examples()"
SAID_AND_NAME = "all => [all.querySelector('div').innerText, all.querySelector('img').alt]"
RIGHT_END = "getBoundingClientRect().right"
OVERHANG = f"img => img.{RIGHT_END} - img.closest('.jp-OutputArea-output').{RIGHT_END}"


def test_every_explorer_follows_keys_and_mouse_and_says_so_in_words(open_notebook, lab):
    made = explorer_examples.examples()
    write_notebook(lab.folder / "explorers.ipynb", [MAKE, *(f"made[{name!r}]" for name in made)])
    notebook = open_notebook("explorers.ipynb").run_all()
    for number, explorer in enumerate(made.values(), 1):
        cell = notebook.cell(number)
        controls = explorer.controls.values()
        choices = [control for control in controls if isinstance(control, ipywidgets.Dropdown)]
        sliders = [control for control in controls if not isinstance(control, ipywidgets.Dropdown)]
        picture_is_named(cell, explorer.title)
        expect(cell.get_by_role("slider")).to_have_count(len(sliders))
        for slider in sliders:
            move_by_keys(notebook.page, cell, named(cell, "slider", slider))
        for choice in choices:
            choose_another(notebook.page, cell, named(cell, "combobox", choice))
        if sliders:
            drag(notebook.page, cell, cell.get_by_role("slider").first)
        picture_is_named(cell, explorer.title)
    notebook.keep_picture("explorers_wide")
    pictures_fit(notebook.page, WIDE)
    notebook.page.keyboard.press("Control+B")  # the file browser leaves
    notebook.keep_picture("explorers_narrow", NARROW)
    pictures_fit(notebook.page, NARROW)


def words(cell):
    return cell.locator(".dlt-explorer > div").first.inner_text()


def picture_is_named(cell, title):
    """A screen reader reads the title, and the words that stand above the picture."""
    expect(cell.get_by_role("img", name=title)).to_be_visible()
    said, name = cell.locator(".dlt-explorer").evaluate(SAID_AND_NAME)
    assert name == f"{title}. {said}"


def named(cell, role, control):
    """The control on the page, by the name under which a screen reader tells it."""
    return cell.get_by_role(role, name=control.description, exact=True)


def until_the_words_change(cell, press, times=30):
    """Press until they do; some moves are too small to change a number in words. The last one may take its time."""
    cell.page.wait_for_selector(IDLE)
    before = words(cell)
    other = cell.locator(".dlt-explorer > div").first.filter(has_not_text=before)
    for count in range(1, times + 1):
        press()
        try:
            return other.wait_for(timeout=60_000 if count == times else 1000)
        except TooLate:
            continue
    pytest.fail(f"nothing changes: {before}")


def move_by_keys(page, cell, handle):
    """Arrow keys, away from the nearer end."""
    low, now, high = (float(handle.get_attribute(f"aria-value{what}")) for what in ("min", "now", "max"))
    key = "ArrowRight" if now < (low + high) / 2 else "ArrowLeft"
    handle.focus()
    until_the_words_change(cell, lambda: page.keyboard.press(key))


def choose_another(page, cell, choice):
    """Arrow keys, too."""
    at, last = choice.evaluate("list => [list.selectedIndex, list.length - 1]")
    choice.focus()
    until_the_words_change(cell, lambda: page.keyboard.press("ArrowDown" if at < last else "ArrowUp"), times=last)


def drag(page, cell, handle):
    """With the mouse, towards the farther end."""
    low, now, high = (float(handle.get_attribute(f"aria-value{what}")) for what in ("min", "now", "max"))
    way = 25 if now < (low + high) / 2 else -25
    handle.scroll_into_view_if_needed()

    def pull():
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + way, y, steps=5)
        page.mouse.up()

    until_the_words_change(cell, pull, times=3)


def pictures_fit(page, width):
    overhangs = page.locator(".dlt-explorer > img").evaluate_all(f"all => all.map({OVERHANG})")
    assert max(overhangs) <= 0.5, f"a picture is cut off at {width} px: {overhangs}"
