"""Runs on other machines that chapters show."""

import pytest

from dltutorial.record import recorded_runs


@pytest.mark.parametrize("name", [file.stem for file in sorted(recorded_runs.FOLDER.glob("*.json"))])
def test_a_recorded_run_is_shown_with_its_machine(name, capsys):
    assert recorded_runs.table(name).rows
    assert capsys.readouterr().out.startswith("recorded on ")


def test_a_row_shows_the_median_beside_its_prediction():
    table = recorded_runs.table("graphs-h200")
    row = dict(zip(table.header, table.rows[3], strict=True))
    assert (row["what"], row["median"], row["measured / predicted"]) == ("narrow network, replayed", "3.66 ms", "1.01")
