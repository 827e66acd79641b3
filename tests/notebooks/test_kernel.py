"""A notebook in a kernel of its own, and whatever goes wrong there."""

import json
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from executing import executed
from waiting import gone, wait_for

from dltutorial.course import execute


@pytest.fixture
def run(tmp_path):
    def go(*cells, timeout_s=150.0, **env_more):
        source = tmp_path / "in.ipynb"
        (tmp_path / "work").mkdir(exist_ok=True)
        execute.quick_imports()
        import nbformat

        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
        nbformat.write(made, source)
        out = tmp_path / "out.ipynb"
        result = executed(source, out, tmp_path / "work", env=env_more, timeout_s=timeout_s)
        return result, nbformat.read(out, 4)

    return go


def text(notebook, number=-1):
    return "".join(item.get("text", "") for item in notebook.cells[number].outputs)


def test_a_notebook_runs_in_its_own_working_directory_and_environment(run, tmp_path):
    result, notebook = run("import os; print(os.getcwd(), os.environ['MINE'])", MINE="7")
    assert (result.error, result.cell) == ("", None)
    assert text(notebook) == f"{tmp_path / 'work'} 7\n"
    assert result.peak_bytes > 30e6


def test_what_a_kernel_knows_of_itself_is_the_same(run):
    _, notebook = run("import sys, random, numpy, torch\nprint(sys.executable, sys.argv[1], sys.path[0] == '')")
    assert text(notebook).startswith(f"{sys.executable} -f ")


def test_two_kernels_do_not_draw_the_same_random_numbers(run):
    draw = "import random, uuid, numpy; print(random.random(), numpy.random.rand(), uuid.uuid4())"
    first, second = text(run(draw)[1]).split(), text(run(draw)[1]).split()
    assert not set(first) & set(second)


@pytest.mark.parametrize("leave", ["import sys; sys.exit()", "import sys; sys.exit(0)", "raise SystemExit"])
def test_a_cell_that_leaves_the_notebook_is_an_error_of_that_cell(run, leave):
    result, notebook = run("print(1)", leave, "print(3)")
    assert (result.error, result.cell) == ("SystemExit: no cell after this one has run; leave sys.exit out", 2)
    assert notebook.cells[2].outputs == []


def test_an_exception_names_its_cell_and_keeps_what_ran(run):
    result, notebook = run("print(1)", "1/0", "print(3)")
    assert (result.error, result.cell) == ("ZeroDivisionError: division by zero", 2)
    assert [len(cell.outputs) for cell in notebook.cells] == [1, 1, 0]


@pytest.mark.ci
@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), 11)"])
def test_a_kernel_that_dies_is_told_in_one_line(run, death):
    result, notebook = run("import os; print(1)", death)
    assert (result.error.split(";")[0], result.cell) == ("the kernel died", 2)
    assert text(notebook, 0) == "1\n"
    assert notebook.cells[1].outputs[-1].output_type == "error"


def test_a_cell_that_takes_too_long_is_ended_and_told_in_one_line(run, tmp_path):
    pid_file = tmp_path / "pid"
    result, _ = run(
        f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()))", "time.sleep(600)", timeout_s=2
    )
    assert result.error.startswith("the cell took longer than 2 s")
    assert result.cell == 2
    assert gone(int(pid_file.read_text()))


@pytest.mark.ci
def test_a_launcher_that_takes_too_long_leaves_no_ranks(run, tmp_path):
    script = tmp_path / "waits.py"
    note = f"open({str(tmp_path)!r} + '/pid' + os.environ['RANK'], 'w').write(str(os.getpid()))"
    script.write_text(f"import os, time\n{note}\ntime.sleep(600)\n")
    result, _ = run(
        f"told = !{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {script}", timeout_s=40
    )
    assert result.error.startswith("the cell took longer than 40 s")
    assert [gone(int((tmp_path / f"pid{rank}").read_text())) for rank in range(2)] == [True, True]


def test_a_kernel_stuck_with_the_lock_of_the_interpreter_is_ended_too(run, tmp_path):
    pid_file = tmp_path / "pid"
    stuck = "import ctypes; ctypes.PyDLL(None).sleep(600)"  # PyDLL keeps the lock
    result, _ = run(f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid()))", stuck, timeout_s=2)
    assert result.cell == 2
    assert gone(int(pid_file.read_text()))


def test_an_interrupt_reaches_the_cell(run, tmp_path):
    def interrupt():
        flag = tmp_path / "work" / "flag"
        wait_for(flag.exists)
        for child in psutil.Process().children(recursive=True):
            if any("ipykernel_launcher" in part for part in child.cmdline()):
                os.killpg(child.pid, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result, _ = run("import time\nopen('flag', 'w').close()\ntime.sleep(600)")
    thread.join()
    assert (result.error, result.cell) == ("KeyboardInterrupt", 1)


def test_torch_trains_and_loads_with_workers_and_starts_processes(run):
    cells = [
        "import torch, multiprocessing as mp, os, sys, subprocess\nx = torch.randn(600, 600, requires_grad=True)",
        "(x @ x).sum().backward(); torch.optim.SGD([x], lr=0.1).step(); print('trained')",
        "data = torch.utils.data.TensorDataset(torch.arange(8.0))\n"
        "print(sum(b[0].sum().item() for b in torch.utils.data.DataLoader(data, 2, num_workers=2)))",
        "with mp.get_context('spawn').Pool(1) as pool:\n    print(pool.apply(os.path.basename, ('a/b',)))",
        "with mp.get_context('forkserver').Pool(1) as pool:\n    print(pool.apply(os.path.basename, ('a/b',)))",
        "print(subprocess.check_output([sys.executable, '-c', 'print(5)'], text=True).strip())",
    ]
    result, notebook = run(*cells)
    assert result.error == ""
    assert [text(notebook, number) for number in range(1, 6)] == ["trained\n", "28.0\n", "b\n", "b\n", "5\n"]


def test_figures_are_drawn_inline_and_widgets_appear(run):
    result, notebook = run(
        "import matplotlib.pyplot as plt; plt.plot([1, 2]);", "import ipywidgets; ipywidgets.FloatText(value=3)"
    )
    assert result.error == ""
    assert "image/png" in notebook.cells[0].outputs[-1].data
    assert "application/vnd.jupyter.widget-view+json" in notebook.cells[1].outputs[-1].data
    assert "widgets" in notebook.metadata


OWNER = """
import asyncio, sys
from pathlib import Path
from dltutorial.course import execute
folder = Path(sys.argv[1])
(folder / "work").mkdir()
asyncio.run(execute.execute(folder / "in.ipynb", folder / "out.ipynb", folder / "work"))
"""
CELL = """
import os, time
open("pid.partial", "w").write(str(os.getpid())); os.rename("pid.partial", "pid"); time.sleep(1000)
"""


def test_no_kernel_outlives_a_killed_owner(tmp_path):
    execute.quick_imports()
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, tmp_path / "in.ipynb")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)])
    try:
        wait_for(lambda: owner.poll() is not None or (tmp_path / "work" / "pid").exists())
        assert owner.poll() is None
        family = {process.pid for process in psutil.Process(owner.pid).children(recursive=True)}
        family.add(int((tmp_path / "work" / "pid").read_text()))
    finally:
        owner.kill()
        owner.wait()
    assert all(gone(pid) for pid in family)


def test_a_kernel_that_does_not_start_gets_a_second_one(run, tmp_path):
    """As one does whose ports another program has taken in the moment between."""
    (spec := tmp_path / "jupyter" / "kernels" / "python3").mkdir(parents=True)
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import os, pathlib, runpy, sys\n"
        f"tries = pathlib.Path({str(tmp_path / 'tries')!r})\n"
        "with tries.open('a') as file: file.write('x')\n"
        "if len(tries.read_text()) == 1: sys.exit(1)\n"
        "sys.argv[0] = 'ipykernel_launcher'\n"
        "runpy.run_module('ipykernel_launcher', run_name='__main__')\n"
    )
    argv = [sys.executable, str(starter), "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    result, notebook = run("print(1)", JUPYTER_PATH=str(tmp_path / "jupyter"))
    assert (result.error, text(notebook, 0)) == ("", "1\n")
    assert (tmp_path / "tries").read_text() == "xx"
