"""The page of a class in a real browser: it fits wide and narrow windows, and nothing in its records runs."""

import json
import time

import class_day
import pytest

from dltutorial.course import classroom

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

EVIL = "</title></style><script>window.harmed=1</script><img src=x onerror=window.harmed=1><svg onload=window.harmed=1>"


@pytest.fixture(scope="module")
def class_page(tmp_path_factory):
    """Forty learners, and one who puts scripts wherever there is text."""
    place = tmp_path_factory.mktemp("class")
    folder = place / "shared"
    folder.mkdir()
    class_day.fill(folder, 40)
    record = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "chapter": "08"}
    check = {"kind": "check", "what": EVIL, "status": "wrong", "failed": EVIL, "hint": EVIL}
    guess = {"kind": "prediction", "what": EVIL, "unit": EVIL, "guess": 1.0, "touched": True, "measured": 2.0}
    lines = [json.dumps(record | check)] * 3 + [json.dumps(record | guess), EVIL]
    (folder / "evil-1.jsonl").write_text("\n".join(lines) + "\n")
    classroom.view(folder, place / "class.html")
    return place / "class.html"


@pytest.mark.parametrize("width", [1300, 390])
def test_nothing_runs_nothing_is_asked_for_and_all_fits(browser, class_page, width):
    window = browser.new_page(viewport={"width": width, "height": 900})
    asked = []
    window.on("request", lambda request: asked.append(request.url))
    window.goto(class_page.as_uri())
    assert asked == [class_page.as_uri()]
    assert window.title().startswith("41 learners, ")
    assert window.evaluate("window.harmed") is None
    assert window.locator("script, img, iframe").count() == 0
    assert EVIL in window.evaluate("document.body.textContent")
    assert window.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for topic in ("Explain next", "Go and see"):
        assert window.get_by_text(topic, exact=True).is_visible()
    window.close()


def test_the_pages_policy_lets_no_script_run_even_if_one_got_in(browser, class_page, tmp_path):
    harmed = class_page.read_text().replace("<main>", "<main><script>window.harmed=1</script>")
    (tmp_path / "harmed.html").write_text(harmed)
    window = browser.new_page()
    window.goto((tmp_path / "harmed.html").as_uri())
    assert window.evaluate("window.harmed") is None
    window.close()
