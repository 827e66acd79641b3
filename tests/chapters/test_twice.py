"""A learner runs the cells of a chapter once more in the same kernel: nothing fails, and all facts still hold."""

import json

import pytest
from executing import executed
from folders import ROOT

from dltutorial.course import runner


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("00_welcome", marks=pytest.mark.ci),
        pytest.param("18_split_a_layer_split_a_sequence", marks=pytest.mark.nightly),
    ],
)
def test_all_cells_of_a_chapter_run_twice_in_one_kernel(name, tmp_path):
    notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    once_more = [cell | {"id": f"{cell['id']}-2"} for cell in notebook["cells"]]
    for cell in once_more:
        cell["metadata"] = {}
    notebook["cells"] += once_more
    source = tmp_path / f"{name}.ipynb"
    source.write_text(json.dumps(notebook), encoding="utf-8")
    (tmp_path / "work").mkdir()
    env = runner.environment("smoke", tmp_path)
    result = executed(source, tmp_path / "executed.ipynb", tmp_path / "work", env=env, timeout_s=300)
    assert result.error == ""
    claims = runner.read_claims(tmp_path)[name[:2]]
    assert len(claims) % 2 == 0
    assert [claim["what"] for claim in claims if claim["status"] == "failed"] == []
