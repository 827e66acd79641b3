import re
import subprocess
import sys

import pytest

from dltutorial.course import site

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WIDGET = "application/vnd.jupyter.widget-view+json"


def notebook():
    import nbformat.v4 as v4

    figure = f'<img class="f" src="data:image/png;base64,{PIXEL}" alt="It &lt;rises&gt;">'
    outputs = [
        v4.new_output("display_data", {WIDGET: {"model_id": "7"}, "text/plain": "FloatText()"}),
        v4.new_output("display_data", {"text/html": figure, "text/plain": "a figure"}),
        v4.new_output("error", ename="ValueError", evalue="no", traceback=["\x1b[31mValueError\x1b[0m: no"]),
    ]
    text = "# Feed the *device*\nIt costs \\$5, and $x^2 < y$.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    links = "[next](04_next.ipynb) [first](00_first.ipynb#top) [out](https://example.org/a.ipynb)"
    made = v4.new_notebook(cells=[v4.new_markdown_cell(text), v4.new_markdown_cell(links), v4.new_code_cell("x = 1")])
    made.cells[-1].outputs = outputs
    made.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    return made


def test_a_page_is_made_if_nbconvert_is_a_package_of_another_python():
    """As in an environment that uses the packages of the system."""
    program = """
import sys
sys.prefix = "/nowhere"
import nbformat.v4 as v4
from dltutorial.course import site
print(site.body(v4.new_notebook(cells=[v4.new_markdown_cell("A *word*")])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert "A <em>word</em>" in done.stdout, done.stderr


@pytest.fixture
def run(tmp_path):
    import nbformat

    nbformat.write(notebook(), tmp_path / "03_feed.ipynb")
    rows = [
        {"notebook": "03_feed.ipynb", "chapter": "03", "status": "failed", "seconds": 12.3, "peak_bytes": 8e8}
        | {"cell": 3, "error": "ValueError: <no>", "claims": {"shown": 1, "not shown here": 1}},
        {"notebook": "04_next.ipynb", "chapter": "04", "status": "not run", "claims": {}},
    ]
    about = {"preset": "smoke", "machine": "a CPU, 2 cores", "versions": {"torch": "2.6"}, "chapters": rows}
    claims = [
        {"what": "fast < slow", "status": "shown", "evidence": "1 s < 2 s", "needs": None},
        {"what": "gpu", "status": "not shown here", "evidence": "", "needs": "a CUDA device"},
    ]
    assert site.write(tmp_path, about | {"date": "2026-01-02"}, {"03": claims}) == tmp_path / "index.html"
    return tmp_path


def test_the_index_tells_machine_chapters_claims_and_failures(run):
    text = (run / "index.html").read_text()
    for part in (
        "a CPU, 2 cores",
        "smoke",
        "torch 2.6",
        "2026-01-02",
        "12 s in notebooks",
        "1</b> claim shown",
        "12.3 s",
        "Cell 3: ValueError: &lt;no&gt;",
        "04_next",
        "not run",
    ):
        assert part in text
    assert re.search(r"✓</b>\s+fast &lt; slow</summary><p>1 s &lt; 2 s", text)
    assert re.search(r"–</b>\s+gpu</summary><p>This needs a CUDA device", text)
    assert '<a href="03_feed.html">Feed the *device*</a>' in text


def test_no_page_asks_anything_of_a_network_or_runs_a_script(run):
    for path in run.glob("*.html"):
        text = path.read_text()
        assert "<script" not in text
        assert re.search(r'<meta http-equiv="Content-Security-Policy" content="default-src .none.;', text)
        assert not re.search(r"<(link|img|iframe)[^>]+(src|href)=.?(https?:)?//", text)
        assert not re.search(r"@import|url\(", text)


def test_a_chapter_page_has_its_outputs_but_no_widgets(run):
    text = (run / "03_feed.html").read_text()
    assert PIXEL in text
    assert "FloatText" not in text
    assert "ValueError" in text
    assert "<table>" in text


def test_links_between_chapters_lead_to_pages_and_dead_ones_become_text():
    text = site.body(notebook(), {"00_first.ipynb"})
    assert '<a href="00_first.html#top">first</a>' in text
    assert re.search(r"<p>next ", text)
    assert 'href="https://example.org/a.ipynb"' in text


DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'


def test_a_further_notebook_links_to_its_chapter_and_shows_drawings_and_folds_code(tmp_path):
    import nbformat.v4 as v4

    (tmp_path / "images").mkdir()
    (tmp_path / "further").mkdir()
    (tmp_path / "images" / "ring.svg").write_text(DRAWING)
    text = "[core](../03_feed.ipynb) [next](04_more.ipynb) ![A ring of ranks](../images/ring.svg)"
    hidden = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    cells = [v4.new_markdown_cell(text), v4.new_code_cell("plot()", metadata=hidden), v4.new_code_cell("teach()")]
    page = site.body(v4.new_notebook(cells=cells), {"03_feed.ipynb", "further/04_more.ipynb"}, "further", tmp_path)
    assert '<a href="../03_feed.html">core</a>' in page
    assert '<a href="04_more.html">next</a>' in page
    assert 'src="data:image/svg+xml;base64,' in page
    assert 'alt="A ring of ranks"' in page
    assert page.count("<summary>Show the code</summary>") == 1
    assert page.index("Show the code") < page.index("plot") < page.index("teach")


def test_mathematics_becomes_mathml_and_money_and_code_do_not():
    import nbformat.v4 as v4

    source = "It costs \\$5, and $x^2 < y$, and `$z$`.\n\n$$\n\\frac{a}{b}\n$$\n\n```\n$q$\n```\n"
    text = site.body(v4.new_notebook(cells=[v4.new_markdown_cell(source)]))
    assert text.count("<math") == 2
    assert "<mfrac>" in text
    assert 'display="block"' in text
    assert "costs $5, and" in text
    assert "<code>$z$</code>" in text
    assert "$q$" in text
