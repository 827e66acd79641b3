"""The slides of each core chapter: how many there are, how they begin and end, and what they show of a long text."""

import pytest
from folders import ROOT

from dltutorial.course import notebooks

CHAPTERS = [path for path in notebooks.chapters(ROOT / "notebooks") if path.parent.name == "notebooks"]


@pytest.fixture(scope="module")
def slides():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "book"))
        import slides

        yield slides


def kinds_and_texts(deck):
    return [(cell["metadata"]["slideshow"]["slide_type"], "".join(cell["source"])) for cell in deck.cells]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_12_to_18_slides_from_its_question_to_its_takeaway(slides, path):
    cells = notebooks.read(path)["cells"]
    deck = kinds_and_texts(slides.Deck(cells))
    begins = [text for kind, text in deck if kind == "slide"]
    assert 12 <= len(begins) <= 18
    (question,) = [line for line in "".join(cells[0]["source"]).splitlines() if line.endswith("?**")]
    assert question in begins[0]
    assert begins[-1].startswith("## Recap")
    assert sum(kind == "notes" for kind, _ in deck) == len(begins)


def test_a_slide_shows_a_drawing_and_two_sentences_and_the_notes_have_all(slides):
    drawing = "![Two boxes](images/boxes.svg)"
    text = f"## 1. Boxes\n{drawing}\n\nA box is one. A second is two. A third is three. The next cell is code.\n"
    source = ["The sum is 6. It is even.\n", "\n", text]
    shown = {"slideshow": {"slide_type": "slide"}}
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["6\n"]}]
    code = {"cell_type": "code", "metadata": shown, "source": "print(6)", "outputs": outputs}
    deck = slides.Deck([code, {"cell_type": "markdown", "metadata": shown, "source": source}])
    _, result, finding, _, beginning, notes = deck.cells
    assert result["outputs"][0]["text"] == "6"
    assert finding["source"] == "The sum is 6. It is even."
    assert beginning["source"] == f"## 1. Boxes\n\n{drawing}\n\nA box is one. A second is two."
    assert "A third is three." in notes["source"]
    assert drawing not in notes["source"]
