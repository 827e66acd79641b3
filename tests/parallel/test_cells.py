"""``%%ranks N`` in a real kernel: variables live on, each rank is seen, what goes wrong is told, nothing is left."""

import os
import re
import signal
import time

import psutil
import pytest
from live import LOAD, notebook
from waiting import gone, wait_for

from dltutorial.course import execute, page
from dltutorial.launch.panes import Panes

SESSIONS = int(os.environ.get("DLTUTORIAL_LAUNCHES", 20)) // 5
IMPORTS = "import os, time, signal, torch, torch.distributed as dist\nfrom torch import nn"
TOTAL = "%%ranks\nx = torch.ones(2)\ndist.all_reduce(x)\nx"
SOON_S = 45.0  # long before anybody's patience ends: a deadline of 120 s, a sleep of 600 s


@pytest.fixture(scope="module")
def nb(request):
    """A notebook whose kernel all tests share."""
    with notebook(request) as made:
        yield made


@pytest.fixture
def fresh(nb):
    """The same, with two new ranks."""
    nb.ok(f"%%ranks 2 --restart\n{IMPORTS}")
    return nb


# What a cell gives


def test_variables_live_on_and_the_group_is_ready(fresh):
    fresh.ok("%%ranks 2\nx = torch.ones(2) * (rank + 1)\ndist.all_reduce(x)")
    assert fresh.ok("%%ranks 2\nx, rank, world_size").panes == [
        "[rank 0] (tensor([3., 3.]), 0, 2)",
        "[rank 1] (tensor([3., 3.]), 1, 2)",
    ]


def test_what_ranks_print_and_show_is_in_a_pane_of_each(fresh):
    done = fresh.ok(
        "%%ranks\nif rank == 1:\n    print('<b>one</b>')\n    os.write(1, b'raw')\n'last' if rank else None"
    )
    assert done.panes == ["", "[rank 1] <b>one</b>\n[rank 1] raw\n[rank 1] 'last'"]
    first, second = done.html.values()
    assert first == ""
    assert second.startswith('<details class="dlt-rank"><summary>')  # closed
    assert "&lt;b&gt;one&lt;/b&gt;" in second
    done = fresh.ok("%%ranks\nclass Rich:\n    def _repr_html_(self):\n        return f'<i>{rank}</i>'\nRich()")
    assert next(iter(done.html.values())).startswith('<details class="dlt-rank" open>')
    assert [f"<i>{rank}</i>" in html for rank, html in enumerate(done.html.values())] == [True, True]
    assert fresh.ok("%%ranks\n5;").panes == []


def test_output_appears_while_ranks_work(fresh, tmp_path):
    def watch(done):
        if "[rank 0] early" in done.panes:
            (tmp_path / "flag").touch()

    cell = f"%%ranks\nprint('early')\nwhile not os.path.exists({str(tmp_path / 'flag')!r}):\n    time.sleep(0.01)"
    fresh.ok(cell, watch=watch)


def test_values_go_to_the_ranks_and_come_back(fresh):
    fresh.ok("scale, other = [10, 20], 'a'")
    fresh.ok("%%ranks --send scale,other --get mine --get also\nmine, also = scale[rank], other * rank")
    assert fresh.ok("print(mine, also)").stdout == "[10, 20] ['', 'a']\n"


def test_functions_and_classes_of_a_cell_can_be_sent_between_ranks(fresh):
    fresh.ok("%%ranks\nclass Box:\n    pass\nbox = Box()\nbox.rank = rank")
    fresh.ok("%%ranks --get box\nboxes = [None] * world_size\ndist.all_gather_object(boxes, box)")
    assert fresh.ok("%%ranks\n[type(b) is Box and b.rank for b in boxes]").panes[1] == "[rank 1] [0, 1]"
    assert fresh.ok("print([b.rank for b in box])").stdout == "[0, 1]\n"


def test_ranks_report_progress(fresh):
    fresh.ok("%%ranks\nfrom dltutorial.launch import progress\nprogress(3, 3)")


def test_launch_beside_them_has_ranks_of_its_own(fresh):
    fresh.ok("%%ranks\nkept = rank")
    fresh.ok("from dltutorial.launch import launch\nassert launch(lambda: 5, 2) == [5, 5]")
    assert fresh.ok("%%ranks\nkept").panes == ["[rank 0] 0", "[rank 1] 1"]


# What goes wrong


def test_one_ranks_error_is_told_and_frees_the_others(fresh):
    done = fresh.fails(
        "%%ranks\nkept = rank\nif rank == 1:\n    1 / kept.imag\ndist.barrier()",
        r"^RankFailed: rank 1 of 2 failed: ZeroDivisionError: division by zero\n\n"
        r"Traceback of rank 1 \(most recent call last\):\n  Cell In\[\d+\], line 4, in <module>\n    1 / kept.imag\n"
        r"ZeroDivisionError: division by zero\n\nThe ranks and their variables are kept. Their process group is new",
    )
    assert done.seconds < SOON_S
    assert f"Cell In[{done.number}], line 4" in done.error
    assert [" open" in html and "✗ failed" in html for html in done.html.values()] == [False, True]
    assert fresh.ok(TOTAL).panes == ["[rank 0] tensor([2., 2.])", "[rank 1] tensor([2., 2.])"]
    assert fresh.ok("%%ranks\nkept").panes[1] == "[rank 1] 1"


def test_an_error_of_all_ranks_costs_nothing_not_even_the_group(fresh):
    fresh.ok("%%ranks\nmodel = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))")
    fresh.fails("%%ranks\nmodle", r"NameError: name 'modle'.*rank . failed in the same way\n\n.*variables are kept\.$")
    fresh.ok("%%ranks\nmodel(torch.ones(1, 2)).sum().backward()")


def test_ddp_goes_on_after_an_error_once_it_is_made_again(fresh):
    make = "model = nn.parallel.DistributedDataParallel(nn.Linear(9, 9))"
    step = "for _ in range(5):\n    model(torch.ones(1, 9)).sum().backward()"
    for _ in range(6):
        fresh.ok(f"%%ranks --get n_files\n{make}\n{step}\nn_files = len(os.listdir('/dev/fd'))")
        fresh.fails(
            "%%ranks\nif rank == 0:\n    raise ValueError('mine')\nmodel(torch.ones(1, 9)).sum().backward()",
            "rank 0 .*ValueError: mine.*variables are kept",
        )
    fresh.ok("assert max(n_files) < 100, n_files  # an old group keeps a handful")


def test_a_syntax_error_has_its_line(fresh):
    told = r"SyntaxError: '\(' was never closed\n.*  Cell In\[\d+\], line 3\n    print\(.*\^\n"
    fresh.fails("%%ranks\nkept = 1\nprint(\n", told)


def test_a_function_of_an_earlier_cell_is_shown_with_its_line(fresh):
    fresh.ok("%%ranks\ndef deep(x):\n    return x / 0")
    fresh.fails(
        "%%ranks\ndeep(1)", r"Cell In\[\d+\], line 2, in <module>\n    deep\(1\)\n.*line 3, in deep\n    return"
    )


@pytest.mark.timed  # until the deadline all ranks have to arrive where they stay
@pytest.mark.parametrize(
    ("wait", "line"),
    [("dist.all_reduce(torch.ones(3))", "waits in all_reduce, called at"), ("time.sleep(600)", "is at"),
     ("while True: pass", "is at"), ("dist.recv(torch.ones(9), 0)", "waits in recv, called at")],
)  # fmt: skip
def test_a_hang_ends_at_the_deadline_with_every_ranks_line(fresh, wait, line):
    done = fresh.fails(
        f"%%ranks --timeout 1\nkept = 5\nif rank == 1:\n    {wait}",
        rf"^RanksHang: rank 1 of 2 did not end within 1 s.*raise --timeout\n\nrank 0 had returned\n"
        rf"rank 1 {line} Cell In\[\d+\], line 4, in <module>: {re.escape(wait)}\n\n.*variables are kept",
    )
    assert done.seconds < 1 + SOON_S
    assert fresh.ok("%%ranks\ndist.barrier()\nkept").panes[1] == "[rank 1] 5"


@pytest.mark.parametrize(
    "stubborn",
    ["dist.recv(torch.ones(3))", "import itertools; sum(itertools.repeat(0))",
     "signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"],
)  # fmt: skip
def test_ranks_that_nothing_brings_back_are_ended_and_that_is_told(fresh, stubborn):
    lost = r"All ranks were ended and their variables are lost"
    fresh.fails(f"%%ranks --timeout 1\nkept = 5\nif rank == 1:\n    {stubborn}", rf"^RanksHang: .*{lost}")
    done = fresh.ok("%%ranks\n'kept' in globals()")
    assert done.stdout == "2 new ranks: what earlier cells have made on ranks is gone\n"
    assert done.panes == ["[rank 0] False", "[rank 1] False"]


def test_a_killed_rank_is_named(fresh):
    done = fresh.fails(
        "%%ranks\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()",
        r"^RankFailed: rank 1 of 2 failed: killed by SIGKILL.*variables are lost",
    )
    assert done.seconds < SOON_S
    assert "2 new ranks" in fresh.ok("%%ranks\nrank").stdout


@pytest.mark.timed
def test_a_rank_that_died_between_cells_is_told(fresh):
    fresh.ok("%%ranks --get pid\npid = os.getpid()\nkept = 1")
    pid = int(fresh.ok("print(pid[1])").stdout)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid))
    time.sleep(0.2)  # until the fork server has told it
    done = fresh.ok("%%ranks\n'kept' in globals()")
    assert "2 new ranks" in done.stdout
    assert "rank 1: killed by SIGKILL" in done.stdout
    assert done.panes[0] == "[rank 0] False"


def test_a_cell_may_play_with_what_the_launcher_has_set(fresh):
    fresh.ok(
        "%%ranks\nos.environ.update(MASTER_PORT='1', RANK='9')\nos.environ.pop('WORLD_SIZE')\nsys = __import__('sys')"
    )
    fresh.ok("%%ranks\nsys.stdout.close()\nrank = 'mine'")
    fresh.fails("%%ranks\nif rank == 'mine' and dist.get_rank():\n    1 / 0\ndist.barrier()", "variables are kept")
    fresh.ok(TOTAL)


def test_sys_exit_does_not_end_a_rank(fresh):
    fresh.fails("%%ranks\nimport sys\nsys.exit(3)", "SystemExit: 3.*variables are kept")
    fresh.ok(TOTAL.replace("%%ranks", "%%ranks\nimport torch"))


def test_a_group_that_the_cell_has_ended_is_made_again(fresh):
    done = fresh.ok("%%ranks --get mine\nmine = rank\ndist.destroy_process_group()")
    assert "The cell has ended the process group. The ranks and their variables are kept." in done.stdout
    assert fresh.ok("print(mine)").stdout == "[0, 1]\n"
    fresh.ok(TOTAL)


def test_what_ranks_disagree_on_does_not_reach_the_next_cell(fresh):
    told = "rank 1 of 2 failed: ValueError: mine"
    fresh.fails("%%ranks\nif rank:\n    raise ValueError('mine')\nwork = dist.isend(torch.ones(2) * 7, 1)", told)
    fresh.ok("%%ranks --get x\nx = torch.zeros(2)\ndist.recv(x, 0) if rank else dist.send(torch.ones(2), 1)")
    assert fresh.ok("print(x[1].tolist())").stdout == "[1.0, 1.0]\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("two", "argument N: invalid int value: 'two'; write %%ranks N"),
        ("-1", "world_size=-1: .*at least 1"),
        ("0", "world_size=0: .*at least 1"),
        ("2 --timeout 0", "--timeout=0.0: a deadline"),
        ("2 --timeout soon", "argument --timeout: invalid float value: 'soon'"),
        ("2 3", "unrecognized arguments: 3"),
        ("2 --nodes 3", "unrecognized arguments: --nodes 3"),
        ("2 --get 3x", "'3x' is no variable's name"),
        ("2 --send nowhere", "--send nowhere: the notebook has no such variable"),
        ("2 --send lock", "lock is or holds something that cannot be sent .*lock"),
        ("2 --get nowhere", "rank . of 2 failed: there is no variable 'nowhere' to get"),
        ("2 --get unsendable", "unsendable is or holds something that cannot be sent"),
        ("2 --backend mpi", "argument --backend: invalid choice: 'mpi'"),
        ("2 'x", "No closing quotation"),
        ("--stop", "%ranks takes --restart or --stop"),
    ],
)
def test_bad_arguments_end_in_one_line(nb, line, told):
    nb.ok("import threading\nlock = threading.Lock()")
    done = nb.fails(f"%%ranks {line}\nunsendable = (n for n in range(3))", rf"^(CourseError|RankFailed): .*{told}")
    assert "\n" not in done.error.split("\n\n")[0]
    assert "Traceback" not in done.error


def test_ranks_that_cannot_be_had_do_not_cost_those_that_are_there(fresh):
    fresh.ok("%%ranks\nkept = rank")
    for line, told in {"-2": "at least 1", "2 --timeout -1": "a deadline", "3 --send no": "no such variable"}.items():
        fresh.fails(f"%%ranks {line}\nrank", told)
    assert fresh.ok("%%ranks\nkept").panes[1] == "[rank 1] 1"


def test_nccl_without_a_gpu_is_told(nb):
    nb.ok("import os\ncuda = os.environ.get('CUDA_VISIBLE_DEVICES')\nos.environ['CUDA_VISIBLE_DEVICES'] = ''")
    nb.fails("%%ranks 2 --backend nccl\nrank", r"^CourseError: nccl needs a GPU for each rank: 2 ranks, 0 GPUs")
    nb.ok("os.environ.pop('CUDA_VISIBLE_DEVICES')\nif cuda: os.environ['CUDA_VISIBLE_DEVICES'] = cuda")


def test_the_first_cell_must_say_how_many(request):
    with notebook(request) as made:
        made.fails("%%ranks\nrank", r"^CourseError: how many ranks\? %%ranks 2 starts two$")
        made.fails("%ranks 2", "code for the ranks goes below a line %%ranks N")
        made.ok("import os\nos.environ['WORLD_SIZE'] = '4'")
        made.fails("%%ranks 2\nrank", "^CourseError: WORLD_SIZE=4 is set here, but 2 ranks are asked for; unset it")


def test_more_ranks_than_cores_is_a_warning(nb):
    n = len(os.sched_getaffinity(0)) + 1
    done = nb.ok(f"%%ranks {n} --restart\nrank")
    assert done.stdout.startswith(f"{n} ranks share {n - 1} cores")
    assert len(done.panes) == n


# Restart, interrupt, end


def test_restart_and_another_number_start_afresh(fresh):
    for line, n in (("--restart", 2), ("3", 3)):
        fresh.ok("%%ranks\nkept = 1")
        done = fresh.ok(f"%%ranks {line}\n'kept' in globals()")
        assert f"{n} new ranks" in done.stdout
        assert done.panes == [f"[rank {rank}] False" for rank in range(n)]
    assert "3 new ranks" in fresh.ok("%ranks --restart").stdout


@pytest.mark.timed  # ranks have a few seconds to come back
@pytest.mark.parametrize("wait", ["dist.barrier() if rank else time.sleep(600)", "time.sleep(600)", "while True: pass"])
def test_an_interrupt_ends_the_cell_and_keeps_the_ranks(fresh, wait):
    def watch(done):
        if len(done.panes) == 2 and all("here" in text for text in done.panes) and not sent:
            sent.append(fresh.manager.interrupt_kernel())

    sent = []
    line = "is at|waits in barrier, called at"
    told = (
        rf"^KeyboardInterrupt: the cell was interrupted\n\nrank 0 ({line}) Cell In\[\d+\], line 4.*variables are kept"
    )
    done = fresh.fails(f"%%ranks\nprint('here')\nkept = rank\n{wait}", told, watch=watch)
    assert done.seconds < SOON_S
    fresh.ok(TOTAL)
    assert fresh.ok("%%ranks\nkept").panes[1] == "[rank 1] 1"


def test_no_rank_outlives_its_kernel(request):
    with notebook(request) as made:
        made.ok(f"%%ranks 2 --get pid\n{IMPORTS}\npid = os.getpid()")
        made.ok("from dltutorial.launch import server\nimport os\nprint(*pid, os.getpid())")
        *ranks, own = map(int, made.ok("print(*pid, os.getpid())").stdout.split())
        fork_server = psutil.Process(ranks[0]).ppid()
        made.client.execute("%%ranks\nwhile True: pass")
        time.sleep(0.5)
        os.kill(own, signal.SIGKILL)
        assert all(gone(pid) for pid in (*ranks, fork_server))


COUNT = """
import gc, os, psutil, time
def count():
    gc.collect()
    me = psutil.Process()
    both = [me, *me.children()]
    return [me.num_threads(), *(p.num_fds() for p in both)], [p for c in me.children() for p in c.children()]

def counted(wanted):  # what ends may take its time
    until = time.monotonic() + 60
    while (found := count())[0] != wanted and time.monotonic() < until:
        time.sleep(0.05)
    return found
"""


def test_many_sessions_leave_nothing_behind(request, tmp_path):
    with notebook(request) as made:
        made.ok(f"import os, tempfile\nos.environ['TMPDIR'] = tempfile.tempdir = {str(tmp_path)!r}\n{COUNT}")
        made.ok(f"%%ranks 2\n{IMPORTS}\nrank")
        made.ok("before, ranks = count()\nassert len(ranks) == 2")
        for _ in range(SESSIONS):
            made.ok("%%ranks 2 --restart\nimport torch.distributed as dist\ndist.barrier()\nrank")
            made.ok("%%ranks\nrank")
            made.fails("%%ranks\nif rank: 1 / 0\ndist.barrier()", "division by zero")
        made.ok(f"%%ranks 2 --restart\n{IMPORTS}\nrank")
        made.ok("after, ranks = counted(before)\nassert after == before and len(ranks) == 2, (before, after, ranks)")
        made.ok("%ranks --stop")
        made.ok("assert not psutil.Process().children()")
        made.ok("%%ranks 2\nrank")
        made.ok("%unload_ext dltutorial.launch.cells")
        made.ok("assert not psutil.Process().children()")
    assert not list(tmp_path.iterdir())


# In a notebook that is run as a whole


def run_cells(tmp_path, request, *cells):
    with execute.quick_imports():
        import nbformat
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, tmp_path / "in.ipynb")
    (tmp_path / "work").mkdir()
    job = execute.Job(tmp_path / "in.ipynb", tmp_path / "out.ipynb", tmp_path / "work", timeout_s=100)
    return execute.execute(job), nbformat.read(job.output, 4)


def test_papermill_stops_at_a_ranks_error_and_the_report_names_it(tmp_path, request):
    result, made = run_cells(tmp_path, request, LOAD, "%%ranks 2\nprint('in', rank)\nif rank: 1 / 0", "print('never')")
    assert result.cell == 2
    assert result.error == "RankFailed: rank 1 of 2 failed: ZeroDivisionError: division by zero"
    assert not made.cells[2].outputs
    static = page.body(made)
    assert static.count('<details class="dlt-rank" open="">') == 2  # rank 0's, and that of the one that failed
    assert "in 1" in static
    assert "Cell In[2], line 3" in static


def test_papermills_report_of_a_course_error_is_its_line(tmp_path, request):
    cell = "from dltutorial.errors import DataError\ndef f():\n    raise DataError('no data; make some')\nf()"
    result, made = run_cells(tmp_path, request, cell)
    assert (result.cell, result.error) == (1, "DataError: no data; make some")
    assert made.cells[0].outputs[0].traceback == ["DataError: no data; make some"]


def test_a_course_error_hides_nothing_of_others(nb):
    nb.ok("from dltutorial.errors import CourseError\ndef fail():\n    raise CourseError('one line')")
    assert nb.run("fail()").error == "CourseError: one line"
    other = nb.run("try:\n    fail()\nexcept CourseError:\n    1 / 0").error
    assert "ZeroDivisionError" in other
    assert "one line" in other
    assert "During handling of the above exception" in other
    while_handled = nb.run("try:\n    1 / 0\nexcept ZeroDivisionError:\n    fail()").error
    assert while_handled == "CourseError: one line\n\n(while this was handled: ZeroDivisionError: division by zero)"


def test_a_flood_of_output_is_cut(monkeypatch):
    shown = []
    panes = Panes(1)
    monkeypatch.setattr(panes, "_draw", lambda: shown.append(panes._bundle(0)))
    panes.feed(0, b"".join(b"%d\n" % number for number in range(5000)))
    panes.close()
    lines = shown[-1]["text/plain"].splitlines()
    assert len(lines) == 1001
    assert lines[0] == "[rank 0] … 4,000 earlier lines are left out"
    assert lines[-1] == "[rank 0] 4999"
