"""What the TensorBoard page and tables refuse, each in one clear line. What records refuse is in test_records."""

from pathlib import Path

import pytest

from dltutorial.errors import CourseError
from dltutorial.record import board
from dltutorial.record.table import Table


def test_a_folder_without_events_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError, match="or below; give the folder that holds some, or train with"):
        board.show(Path())


def test_a_ragged_row_is_refused():
    with pytest.raises(ValueError, match="every row needs 2 cells"):
        Table.of(["a", "b"], [["1"]])
