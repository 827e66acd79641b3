"""What trackers and tables refuse, each in one clear line. What records refuse is in test_records."""

from pathlib import Path

import pytest

from dltutorial.errors import CourseError
from dltutorial.record import board, track
from dltutorial.record.table import Table


def test_a_folder_without_events_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError, match="or below; give the folder that holds some, or train with"):
        board.show(Path())


def test_an_unknown_mode_of_wandb_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    with pytest.raises(CourseError, match="in mode 'nonsense'"):
        track.Tracker(("wandb",), tmp_path, {})


def test_a_ragged_row_is_refused():
    with pytest.raises(ValueError, match="every row needs 2 cells"):
        Table.of(["a", "b"], [["1"]])
