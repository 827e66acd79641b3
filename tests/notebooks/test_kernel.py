import sys

import pytest
from executing import executed
from waiting import gone

from dltutorial.course import execute


def write(file, *cells):
    execute.quick_imports()
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(notebook, file)


@pytest.fixture
def run(tmp_path):
    def go(*cells, timeout_s=150.0, **env):
        import nbformat

        write(tmp_path / "in.ipynb", *cells)
        (tmp_path / "work").mkdir()
        source, output = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
        return executed(source, output, tmp_path / "work", env=env, timeout_s=timeout_s), nbformat.read(output, 4)

    return go


def text(notebook, number=-1):
    return "".join(item.get("text", "") for item in notebook.cells[number].outputs)


def test_a_notebook_runs_in_its_own_folder_and_environment_and_shows_figures(run, tmp_path):
    where = "import os; print(os.getcwd(), os.environ['MINE'])"
    result, notebook = run(where, "import matplotlib.pyplot as plt; plt.plot([1, 2]);", MINE="7")
    assert (result.error, result.cell) == ("", None)
    assert text(notebook, 0) == f"{tmp_path / 'work'} 7\n"
    assert "image/png" in notebook.cells[1].outputs[-1].data
    assert result.peak_bytes > 30e6


@pytest.mark.ci
@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_a_kernel_that_dies_is_one_line_and_the_outputs_before_it_stay(run, death):
    result, notebook = run("import os; print(1)", death)
    assert (result.error.split(";")[0], result.cell) == ("the kernel died", 2)
    assert text(notebook, 0) == "1\n"
    assert notebook.cells[1].outputs[-1].output_type == "error"


# As torchrun does, it starts each rank in a session of its own. It does not need the seconds to import torch.
LAUNCHER = """import os, subprocess, sys
command = [sys.executable, sys.argv[1]]
ranks = [subprocess.Popen(command, env=os.environ | {"RANK": rank}, start_new_session=True) for rank in "01"]
for process in ranks:
    process.wait()
"""


@pytest.mark.ci
def test_a_launcher_that_takes_too_long_leaves_no_ranks(run, tmp_path):
    script = tmp_path / "waits.py"
    note = f"open({str(tmp_path)!r} + '/pid' + os.environ['RANK'], 'w').write(str(os.getpid()))"
    script.write_text(f"import os, time\n{note}\ntime.sleep(600)\n")
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    result, _ = run(f"lines = !{sys.executable} {launcher} {script}", timeout_s=15)
    assert result.error.startswith("the cell took longer than 15 s")
    assert [gone(int((tmp_path / f"pid{rank}").read_text())) for rank in range(2)] == [True, True]
