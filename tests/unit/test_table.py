import pytest

from dltutorial.record.table import Table


def test_numbers_align_right_and_words_left():
    text = str(Table.of(["what", "GB/s"], [["copy", 9.5], ["a longer name", 120]]))
    assert text.splitlines()[2:] == ["copy            9.5", "a longer name   120"]


def test_unknown_is_not_available_and_html_is_escaped():
    page = Table.of(["<b>"], [[None]])._repr_html_()
    assert "not available" in page
    assert "&lt;b&gt;" in page


def test_a_ragged_row_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        str(Table.of(["a", "b"], [["1"]]))
