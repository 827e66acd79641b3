import json

import pytest

from dltutorial.errors import CourseError
from dltutorial.record import records


def test_what_was_written_is_read_back(tmp_path):
    file = tmp_path / "new" / "records.jsonl"
    written = records.Writer("01", "smoke", file).write("loss", 0.5, "", seeds=(1, 2))
    (found,) = records.read(file)
    assert found == json.loads(json.dumps(written))
    assert (found["chapter"], found["preset"], found["value"], found["seeds"]) == ("01", "smoke", 0.5, [1, 2])


def test_numbers_of_numpy_and_torch_become_plain_and_nan_becomes_text(tmp_path):
    import numpy as np
    import torch

    writer = records.Writer("01", "smoke", tmp_path / "r.jsonl")
    writer.write("a", np.float32(0.5), "", tensor=torch.arange(2), nan=float("nan"))
    (found,) = records.read(tmp_path / "r.jsonl")
    assert (found["value"], found["tensor"], found["nan"]) == (0.5, [0, 1], "nan")


def test_a_torn_last_line_is_passed_over_and_spoils_no_later_record(tmp_path):
    file = tmp_path / "r.jsonl"
    writer = records.Writer("01", "smoke", file)
    writer.write("first", 1)
    with open(file, "a") as lines:
        lines.write('{"what": "sec')
    assert [record["what"] for record in records.read(file)] == ["first"]
    writer.write("third", 3)
    assert [json.loads(line)["what"] for line in file.read_text().splitlines()[::2]] == ["first", "third"]
    with pytest.raises(CourseError, match="line 2"):
        list(records.read(file))
