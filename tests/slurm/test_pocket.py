"""The pocket cluster comes up in seconds, once, and leaves nothing; one that was killed is recognised."""

import contextlib
import inspect
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import psutil
import pytest
from executing import executed
from waiting import wait_for

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket
from dltutorial.launch import pocket_daemons as daemons

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def name():
    name = f"own-{os.getpid()}"
    yield name
    pocket.down(name)


def command(*words, **env):
    run = [sys.executable, "-m", "dltutorial", "pocket", *words]
    return subprocess.run(run, capture_output=True, text=True, env=os.environ | env, timeout=250)


def test_up_is_the_same_again_and_down_leaves_nothing(name):
    cluster = pocket.up(2, name)
    assert pocket.states(cluster) == {"n0": "idle", "n1": "idle"}
    before = {process.pid for process in daemons.processes(cluster.folder)}
    assert pocket.up(2, name) == cluster
    assert {process.pid for process in daemons.processes(cluster.folder)} == before
    subprocess.run(
        ["sbatch", "-N2", "-o/dev/null", "--wrap", "srun sleep 77"], env=os.environ | cluster.env, check=True
    )
    asleep = lambda: [p for p in daemons.processes(cluster.folder) if "77" in p.cmdline()]  # noqa: E731
    wait_for(asleep)
    mine = daemons.processes(cluster.folder)
    assert pocket.down(name)
    assert not daemons.processes(cluster.folder)
    assert all(not psutil.pid_exists(p.pid) or p.status() == psutil.STATUS_ZOMBIE for p in mine)
    assert not cluster.folder.exists()
    assert not pocket.down(name)


def waits_for(cluster, *words):
    env = os.environ | cluster.env
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def states_of_jobs(cluster):
    said = subprocess.run(["squeue", "--noheader", "--format=%t"], env=os.environ | cluster.env, capture_output=True)
    return said.stdout.decode().split()


def test_down_ends_whoever_waits_for_a_job_that_runs_or_is_queued(name):
    cluster = pocket.up(1, name)
    runs = waits_for(cluster, "srun", "--exclusive", "sleep", "1000")
    wait_for(lambda: states_of_jobs(cluster) == ["R"])
    queued = waits_for(cluster, "srun", "sleep", "1000")
    batch = waits_for(cluster, "sbatch", "--wait", "-o/dev/null", "--wrap", "sleep 1000")
    wait_for(lambda: sorted(states_of_jobs(cluster)) == ["PD", "PD", "R"])
    done = command("down", "--name", name)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == f"the cluster {name} has ended"  # above, it may wait for another's
    for who, told in ((runs, "CANCELLED|erminat"), (queued, "cancelled"), (batch, "")):
        assert re.search(told, who.communicate(timeout=200)[0])


@pytest.mark.parametrize("role", ["munge", "controller", "n0"])
def test_down_ends_in_bounded_time_where_a_daemon_is_stopped_and_somebody_waits(name, role):
    cluster = pocket.up(1, name)
    stubborn = waits_for(cluster, "srun", "bash", "-c", "trap '' TERM; while true; do sleep 1; done")
    wait_for(lambda: states_of_jobs(cluster) == ["R"])
    daemon(cluster, role).suspend()
    done = command("down", "--name", name)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == f"the cluster {name} has ended"  # above, it may wait for another's
    stubborn.communicate(timeout=200)
    assert not daemons.processes(cluster.folder)


def step_daemons(cluster):
    every = psutil.process_iter(["name"])
    return [p for p in every if p.info["name"] == "slurmstepd" and environment_names(p, cluster.folder)]


def environment_names(process, folder):
    with contextlib.suppress(OSError):
        return f"{folder}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes()


@pytest.mark.parametrize("job", [["sbatch", "-o/dev/null", "--wrap"], ["srun", "bash", "-c"]])
def test_down_from_inside_a_job_ends_the_cluster_and_its_own_step_daemon(name, tmp_path, job):
    """A step daemon asks its controller for ever, and srun waits for that."""
    cluster = pocket.up(1, name)
    down = f"{sys.executable} -m dltutorial pocket down --name {name} > {tmp_path}/said 2>&1; cat {tmp_path}/said"
    env = os.environ | cluster.env
    said = subprocess.run([*job, down], env=env, cwd=ROOT, capture_output=True, text=True, timeout=250).stdout
    wait_for(lambda: (tmp_path / "said").exists() and "has ended" in (tmp_path / "said").read_text())
    assert "has ended" in said or job[0] == "sbatch"
    assert pocket.status(name) is None
    wait_for(lambda: not step_daemons(cluster))
    assert not pocket.down(name)


def test_a_step_daemon_that_has_lost_its_cluster_and_its_folder_still_ends(name):
    cluster = pocket.up(1, name)
    job = ["sbatch", "-o/dev/null", "--wrap", "exec sleep 79"]
    subprocess.run(job, env=os.environ | cluster.env, check=True, capture_output=True)
    asleep = lambda: [p for p in daemons.processes(cluster.folder) if "79" in p.cmdline()]  # noqa: E731
    (script,) = wait_for(asleep)
    for role in PROGRAM.keys() - {"n1"}:
        daemon(cluster, role).kill()
    shutil.rmtree(cluster.folder)
    script.kill()
    (step,) = wait_for(lambda: step_daemons(cluster))
    wait_for(lambda: not step.children())
    assert pocket.down(name)
    assert not step_daemons(cluster)


def test_down_from_the_shell_of_an_allocation_ends_the_cluster(name, tmp_path):
    """Slurm hangs up what runs in such a shell once its job is cancelled."""
    cluster = pocket.up(1, name)
    terminal = "import pty; pty.spawn(['salloc', '-N1', 'bash', '--norc', '-i'])"
    shell = subprocess.Popen(
        [sys.executable, "-c", terminal], env=os.environ | cluster.env, cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: states_of_jobs(cluster) == ["R"])
    try:
        down = f"{sys.executable} -m dltutorial pocket down --name {name} > {tmp_path}/said 2>&1; exit"
        shell.stdin.write(f"{down}\n".encode())
        shell.stdin.flush()
        wait_for(lambda: (tmp_path / "said").exists() and "has ended" in (tmp_path / "said").read_text())
        assert pocket.status(name) is None
    finally:
        shell.communicate(timeout=200)


def test_all_its_daemons_listen_on_the_loopback_only(cluster):
    ports = [c.laddr for p in daemons.processes(cluster.folder) for c in p.net_connections() if c.status == "LISTEN"]
    assert len(ports) == 1 + len(cluster.nodes)
    assert {port.ip for port in ports} == {"127.0.0.1"}


def test_only_its_user_may_look_into_it(cluster):
    assert cluster.folder.stat().st_mode & 0o077 == 0
    assert (cluster.folder / "munge.key").stat().st_mode & 0o077 == 0


def test_another_number_of_nodes_is_told(cluster):
    with pytest.raises(CourseError, match=r"is up with 4 nodes, not 2; end it first: dltutorial pocket down"):
        pocket.up(2, cluster.name)


def test_a_killed_cluster_is_recognised_and_replaced(name):
    cluster = pocket.up(1, name)
    daemons.kill(cluster.folder, "controller")
    left = pocket.status(name)
    assert left is not None
    assert left.faults == ("controller does not run",)
    assert "not whole: controller does not run; mend it: " in command("status", "--name", name).stderr
    assert pocket.up(2, name).nodes == ("n0", "n1")


PROGRAM = {"munge": "munged", "controller": "slurmctld", "n0": "slurmd", "n1": "slurmd"}


def daemon(cluster, role):
    (found,) = [p for p in daemons.processes(cluster.folder, role) if p.name() == PROGRAM[role]]
    return found


def test_whichever_daemon_is_killed_or_stopped_status_tells_and_up_mends(name):
    cluster = pocket.up(2, name)
    for role in PROGRAM:
        for kill in (psutil.Process.kill, psutil.Process.suspend):
            kill(daemon(cluster, role))
            told = command("status", "--name", name)
            assert (told.returncode, told.stdout) == (1, "")
            assert f"is not whole: {role} does not run; mend it: dltutorial pocket up --nodes 2" in told.stderr
            mended = command("up", "--name", name)
            assert mended.returncode == 0, mended.stderr
            assert command("status", "--name", name).returncode == 0
            said = subprocess.run(
                ["srun", "-N2", "echo", "here"], env=os.environ | cluster.env, capture_output=True, timeout=100
            )
            assert said.stdout == b"here\nhere\n", (role, said.stderr)


def test_slurm_knows_that_a_node_is_down_before_its_jobs_are_killed(name, monkeypatch):
    """Else a job's end, which it hears of first, makes it failed where it asked to be queued anew."""
    cluster, kill, seen = pocket.up(2, name), daemons.kill, []

    def asks_first(folder, role=None):
        seen.append((role, pocket.states(cluster)["n1"]))
        kill(folder, role)

    monkeypatch.setattr(daemons, "kill", asks_first)
    daemon(cluster, "n1").kill()
    assert pocket.up(2, name) == cluster
    ((role, state),) = seen
    assert role == "n1"
    assert state.startswith("down")


def test_queued_jobs_outlive_a_killed_controller(name):
    cluster = pocket.up(1, name)
    env = os.environ | cluster.env
    subprocess.run(["sbatch", "--hold", "-o/dev/null", "--wrap", "true"], env=env, check=True, capture_output=True)
    written = cluster.folder / "state" / "job_state"  # soon, but not before sbatch returns
    wait_for(lambda: written.exists() and b"wrap" in written.read_bytes())
    daemon(cluster, "controller").kill()
    assert pocket.up(1, name) == cluster
    queued = subprocess.run(["squeue", "--noheader", "--states=all"], env=env, capture_output=True, text=True)
    assert len(queued.stdout.splitlines()) == 1


def test_a_job_that_a_stopped_controller_has_not_written_down_is_not_lost(name):
    """It writes the first at once, the next ones seconds later, or as it ends."""
    cluster = pocket.up(1, name)
    env, written = os.environ | cluster.env, cluster.folder / "state" / "job_state"
    controller, queued = daemon(cluster, "controller"), []
    while not queued or queued[-1].encode() in (written.read_bytes() if written.exists() else b""):
        controller.resume()
        queued.append(f"job-{len(queued)}-")
        held = ["sbatch", "--hold", "-o/dev/null", f"--job-name={queued[-1]}", "--wrap", "true"]
        subprocess.run(held, env=env, check=True, capture_output=True)
        controller.suspend()
    assert pocket.status(name).faults == ("controller does not run",)
    assert pocket.up(1, name) == cluster
    told = ["squeue", "--noheader", "--states=all", "--sort=i", "--format=%j"]
    assert subprocess.run(told, env=env, capture_output=True, text=True).stdout.split() == queued
    daemon(cluster, "controller").suspend()
    assert pocket.down(name)  # at once, all the same
    assert not daemons.processes(cluster.folder)


def test_a_drained_node_and_a_lost_socket_are_told_and_mended(name):
    cluster = pocket.up(2, name)
    drain = ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test"]
    subprocess.run(drain, env=os.environ | cluster.env, check=True)
    assert pocket.status(name).faults == ("n1 is drained",)
    assert pocket.up(2, name) == pocket.status(name) == cluster
    (cluster.folder / "munge.socket").unlink()
    assert pocket.status(name).faults == ("munge does not answer",)
    assert pocket.up(2, name) == pocket.status(name) == cluster


def test_a_cluster_killed_as_a_whole_starts_anew_and_one_without_its_folder_still_ends(name):
    cluster = pocket.up(1, name)
    daemons.kill(cluster.folder)
    assert len(pocket.status(name).faults) == 3
    cluster = pocket.up(1, name)
    assert cluster == pocket.status(name)
    shutil.rmtree(cluster.folder)
    assert pocket.status(name) is None
    assert pocket.down(name)
    assert not daemons.processes(cluster.folder)


def test_a_cluster_with_bytes_that_are_no_text_ends_all_the_same(name, tmp_path):
    """squeue cuts a job's name after so many bytes, in the middle of a character."""
    cluster = pocket.up(1, name)
    script = f"trap '' TERM; touch {tmp_path}/began; sleep 60"
    words = ["sbatch", "-o/dev/null", "--job-name=Übung7ä", "--wrap", script]
    subprocess.run(words, env=os.environ | cluster.env, check=True, capture_output=True)
    wait_for((tmp_path / "began").exists)
    assert pocket.status(name) == cluster
    with open(cluster.folder / "slurm.conf", "ab") as conf:
        conf.write(b"# \xff\n\xfe\x80 = \xff\n")
    said = command("status", "--name", name)
    assert "Traceback" not in said.stderr
    said = command("down", "--name", name)
    assert said.returncode == 0, said.stderr
    assert not daemons.processes(cluster.folder)


@pytest.mark.parametrize("damage", ["cut", "words", "fifo", "folder", "gone"])
def test_a_damaged_description_kills_nobody_else_and_up_mends(name, damage):
    cluster = pocket.up(1, name)
    bystander = subprocess.Popen(["sleep", "100"])
    conf = cluster.folder / "slurm.conf"
    text = conf.read_text()
    for file in cluster.folder.glob("*.pid"):
        file.write_text(str(bystander.pid))
    conf.unlink()
    if damage in ("cut", "words"):
        conf.write_text(text[: len(text) // 2] if damage == "cut" else text.replace("NodeName=n0", "NodeName=../x"))
    elif damage != "gone":
        os.mkfifo(conf) if damage == "fifo" else conf.mkdir()
    try:
        said = command("status", "--name", name)
        assert said.returncode == 1
        told = "there is no cluster" if damage == "gone" else "is not whole: its slurm.conf cannot be read, or names no"
        assert told in said.stderr
        assert pocket.up(1, name) == pocket.status(name)
        assert pocket.down(name)
        assert not daemons.processes(cluster.folder)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_cluster_that_waits_for_another_pocket_says_so(name):
    with paths.locked(pocket._home()):
        waits = subprocess.Popen(
            [sys.executable, "-m", "dltutorial", "pocket", "down", "--name", name], stderr=subprocess.PIPE, text=True
        )
        assert waits.stderr.readline() == "another dltutorial pocket is at work here; waiting for it\n"
    assert waits.communicate()[1] == f"there was no cluster {name}\n"


@pytest.mark.parametrize("theirs", ["notes", "notes and slurm.conf", "slurm.conf", "fifo", "file"])
def test_what_is_no_clusters_stays(name, theirs):
    folder = pocket._folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if theirs not in ("fifo", "file"):
        folder.mkdir()
        for file in theirs.split(" and "):
            (folder / file).write_text("precious")
    else:
        os.mkfifo(folder) if theirs == "fifo" else folder.write_text("precious")
    try:
        for act in (pocket.down, lambda name: pocket.up(1, name)):
            with pytest.raises(CourseError, match="is no pocket cluster's and stays as it is; choose another --name"):
                act(name)
        assert not folder.is_dir() or {file.read_text() for file in folder.iterdir()} == {"precious"}
        assert folder.exists()
    finally:
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


@pytest.mark.parametrize(
    "theirs", [
        "notes.md", "work/notes", "state/notes.md", "n0/notes", "slurm-1001.out", ".git", "n7", "state/to_do",
        "n0/my_results", "n0/job01001/job_1", "state/my_work/run_1",
    ],
)  # fmt: skip
def test_a_file_that_somebody_keeps_in_a_cluster_stays_and_all_else_too_until_it_is_moved(name, theirs):
    cluster = pocket.up(1, name)
    file = cluster.folder / theirs
    first = {"work/notes": "work", "state/my_work/run_1": "state/my_work"}.get(theirs, theirs)
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    told = command("down", "--name", name)
    assert told.returncode == 2
    (line,) = [line for line in told.stderr.splitlines() if "waiting for it" not in line]
    assert f"stays: {first!r} in it is no pocket cluster's; move that away, then try again" in line
    assert file.read_text() == "precious"
    assert (cluster.folder / "munge.key").is_file()
    assert not daemons.processes(cluster.folder)
    file.unlink()
    if first != theirs:
        file.parent.rmdir()
    assert pocket.up(1, name).faults == ()


def test_all_that_a_cluster_has_written_after_jobs_of_each_kind_goes(name):
    cluster = pocket.up(2, name)
    env = os.environ | cluster.env
    subprocess.run(["sbatch", "-o/dev/null", "-N2", "--wrap", "srun sleep 1000"], env=env, check=True)
    subprocess.run(["sbatch", "-o/dev/null", "--array=0-1", "--wrap", "sleep 1000"], env=env, check=True)
    subprocess.run(["sbatch", "-o/dev/null", "--hold", "--wrap", "true"], env=env, check=True)
    subprocess.run(["srun", "-N2", "true"], env=env, check=True)
    wait_for(lambda: states_of_jobs(cluster).count("R") == 3)
    (cluster.folder / "core").touch()  # where the machine writes such
    assert pocket.down(name)
    assert not cluster.folder.exists()


def test_ports_that_others_take_are_told_as_such_and_others_are_tried(name, monkeypatch):
    configuration, tried = daemons._configuration, []

    def with_a_taken_port(cluster):
        text = configuration(cluster)
        tried.append(re.search(r"SlurmctldPort=(\d+)", text)[1])
        return text.replace(f"Port={tried[-1]}", f"Port={taken.getsockname()[1]}") if len(tried) < n_taken else text

    monkeypatch.setattr(daemons, "_configuration", with_a_taken_port)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        n_taken = 3
        assert pocket.up(1, name).faults == ()
        assert len(tried) == 3
        pocket.down(name)
        n_taken = 100
        with pytest.raises(CourseError, match="Address already in use") as refused:
            pocket.up(1, name)
    assert "\n" not in str(refused.value)
    assert pocket.status(name) is None
    assert not [p for p in psutil.process_iter(["environ"]) if f"/{name}:" in str(p.info["environ"])]


def test_two_at_once_are_one_of_a_name_and_both_of_two(name):
    run = [sys.executable, "-m", "dltutorial", "pocket", "up", "--nodes", "1", "--name"]
    try:
        three = [subprocess.Popen([*run, n], stdout=subprocess.PIPE, text=True) for n in (name, name, f"{name}-b")]
        said = [process.communicate(timeout=250)[0] for process in three]
        assert [process.returncode for process in three] == [0, 0, 0]
        assert said[0] == said[1] != said[2]
        assert len(daemons.processes(pocket.status(name).folder, "controller")) >= 1
        assert pocket.status(name).faults == pocket.status(f"{name}-b").faults == ()
    finally:
        pocket.down(f"{name}-b")


FULL_DISK = """
import resource, sys
from dltutorial.launch import pocket
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
try:
    pocket.up(1)
except pocket.CourseError as error:
    print(error)
"""


@pytest.mark.parametrize("n_bytes", [0, 100, 3000])
def test_no_room_for_its_files_is_one_line_and_leaves_nothing(tmp_path, n_bytes):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(n_bytes)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert len(done.stdout.splitlines()) == 1, done.stdout + done.stderr
    assert not list(tmp_path.glob("dltutorial/pocket/*/pocket"))
    assert not [p for p in psutil.process_iter(["environ"]) if str(tmp_path) in str(p.info["environ"])]


@pytest.mark.parametrize("odd", ["long" * 20, "a b", "ö#"])
def test_a_folder_that_slurm_cannot_have_is_reached_by_a_short_one(name, tmp_path, monkeypatch, odd):
    """Too long for sockets, or of letters that its configuration does not know."""
    place = tmp_path if len(odd) > 9 else Path(tempfile.mkdtemp())
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / odd))
    cluster = pocket.up(1, name)
    assert len(str(cluster.folder)) < 60
    assert pocket.status(name) == cluster
    pocket.down(name)
    assert not cluster.folder.exists()
    shutil.rmtree(place)


def test_the_command_prints_what_a_shell_evaluates(cluster):
    done = command("up", "--nodes", "4", "--name", cluster.name)
    assert done.stdout == f"export SLURM_CONF={cluster.folder}/slurm.conf\n"
    shown = command("status", "--name", cluster.name)
    assert (shown.returncode, shown.stdout) == (0, done.stdout)
    assert "n0 " in shown.stderr
    none = command("status", "--name", "nobody")
    assert (none.returncode, none.stdout) == (1, "")


def test_each_process_has_a_cluster_of_its_own_and_those_of_dead_ones_end():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, kept = f"lab-of-{gone.pid}", f"lab-{gone.pid}"  # the second is what somebody called a cluster by hand
    pocket.up(1, left)
    pocket.up(1, kept)
    mine = pocket.own("lab", nodes=1)
    try:
        assert mine.name == f"lab-of-{os.getpid()}"
        assert left not in pocket.names()
        assert pocket.status(kept).faults == ()
    finally:
        pocket.down(mine.name)
        pocket.down(kept)
    assert mine.name not in pocket.names()


def test_what_somebody_keeps_where_a_cluster_would_be_stays(name):
    (mine := pocket._home() / name / "state" / "notes").parent.mkdir(parents=True)
    mine.write_text("mine")
    for act in (lambda: pocket.up(1, name), lambda: pocket.down(name)):
        with pytest.raises(CourseError, match="is no pocket cluster's and stays"):
            act()
    assert mine.read_text() == "mine"
    shutil.rmtree(mine.parents[1])


def test_a_chapter_that_takes_too_long_leaves_no_cluster(tmp_path):
    """Its kernel is killed, with no time to end anything."""
    code = "import time\nfrom dltutorial.launch import pocket\nprint(pocket.own('late', nodes=1).name)\ntime.sleep(999)"
    cells = [nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "late.ipynb")
    for timeout_s in (15, 120):  # on a busy machine the cluster itself may take long
        done = executed(tmp_path / "late.ipynb", tmp_path / "out.ipynb", tmp_path, timeout_s=timeout_s)
        assert f"took longer than {timeout_s} s" in done.error
        outputs = nbformat.read(tmp_path / "out.ipynb", 4).cells[0].outputs
        if told := [output.text.strip() for output in outputs if output.get("name") == "stdout"]:
            break
    assert told[0].startswith("late-")
    assert told[0] not in pocket.names()


def test_a_cluster_of_a_processs_own_ends_with_it():
    code = "from dltutorial.launch import pocket; c = pocket.own('brief', nodes=1); print(c.name); print(c.folder)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    name, folder = done.stdout.splitlines()
    assert name.startswith("brief-") and not Path(folder).exists()
    assert name not in pocket.names()


IN_A_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc"]  # with this home and this host's name
WITH_ITS_OWN_TMP = ["sh", "-c", 'mount -t tmpfs none "$TMPDIR" && exec "$@"', "sh"]
contained = pytest.mark.skipif(
    subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True).returncode != 0,
    reason="a namespace of processes takes root and unshare",
)


@pytest.fixture
def home(monkeypatch):
    """A cache of the test's own, with a short name: end_left looks at all clusters of it."""
    with tempfile.TemporaryDirectory(prefix="c") as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield Path(folder)


def contained_command(*words, before=()):
    run = [*IN_A_CONTAINER, *before, sys.executable, *words]
    return subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=250)


@contained
@pytest.mark.parametrize("action", ["status", "up", "down"])
def test_another_containers_cluster_is_left_alone(home, name, action):
    """Its daemons cannot be seen there, and so looked dead."""
    cluster = pocket.up(1, name)
    done = contained_command("-m", "dltutorial", "pocket", action, "--name", name)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"dltutorial: a pocket cluster of another container is up in {cluster.folder}; end it there: "
    )
    assert pocket.status(name) == cluster
    assert pocket.down(name)
    assert "there is no cluster" in contained_command("-m", "dltutorial", "pocket", "status", "--name", name).stderr


@contained
def test_what_a_container_has_left_when_it_ended_is_no_cluster_any_more(home, name):
    done = contained_command("-m", "dltutorial", "pocket", "up", "--nodes", "1", "--name", name)
    assert done.returncode == 0, done.stderr
    assert pocket.status(name).faults[0] == "munge does not run"
    assert pocket.up(1, name).faults == ()
    assert pocket.down(name)


@contained
@pytest.mark.parametrize("before", [[], WITH_ITS_OWN_TMP], ids=["same", "own"])
def test_another_containers_cluster_behind_a_link_is_left_alone(home, name, monkeypatch, before):
    """A long path is reached by a short one, below a folder that each container may have for itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ("long" * 20)))
    (own := home / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    cluster = pocket.up(1, name)
    assert cluster.folder.parent == own
    for action in ("status", "down", "up"):
        done = contained_command("-m", "dltutorial", "pocket", action, "--name", name, before=before)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "of another container is up" in done.stderr
    assert pocket.status(name) == cluster
    daemons.kill(cluster.folder)
    shutil.rmtree(cluster.folder)  # by who tidies such folders, say: nobody else's
    assert pocket.down(name)


@contained
def test_clusters_of_processes_in_other_containers_do_not_end_for_a_number_that_is_unknown_here(home):
    """Neither within, where the daemons are not seen, nor outside, where their owner has another number."""
    nobody = f"lab-of-{2**22 + 1}"  # more than a process's number can be
    outer = pocket.up(1, nobody)
    try:
        done = contained_command("-c", "from dltutorial.launch import pocket; pocket.end_left()")
        assert (done.returncode, done.stderr) == (0, "")
        assert pocket.status(nobody) == outer
    finally:
        pocket.down(nobody)
    code = f"from dltutorial.launch import pocket; pocket.up(1, {nobody!r}); print('up', flush=True); input()\n"
    code += f"print(pocket.status({nobody!r}).faults); pocket.end_left(); print(pocket.names())"
    run = [*IN_A_CONTAINER, sys.executable, "-c", code]
    inside = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert inside.stdout.readline() == "up\n"
    pocket.end_left()
    assert inside.communicate("\n", timeout=250)[0].splitlines() == ["()", "[]"]


@contained
def test_a_process_whose_number_another_container_has_too_goes_without_a_cluster(home):
    other = pocket.up(1, "lab-of-1")
    try:
        done = contained_command("-c", "from dltutorial.launch import pocket; print(pocket.own('lab', nodes=1))")
        assert (done.returncode, done.stdout) == (0, "None\n")
        (line,) = done.stderr.splitlines()
        assert line.startswith("no cluster: a pocket cluster of another container is up in ")
        assert pocket.status(other.name) == other
    finally:
        pocket.down(other.name)


AS_NOBODY = """
import os, subprocess, sys
import filelock  # while Python may be read: it may lie in a home folder
from dltutorial.launch import pocket
os.setgid(65534)
os.setuid(65534)
cluster = pocket.up(2)
print(subprocess.check_output(["srun", "-N2", "id", "-u"], env=os.environ | cluster.env, text=True).split())
job = ["sbatch", "-N2", "-o/dev/null", "--wrap", "srun sleep 78"]
subprocess.run(job, env=os.environ | cluster.env, check=True, stdout=subprocess.DEVNULL)
wanted = ["squeue", "--noheader", "--states=running"]
while not subprocess.check_output(wanted, env=os.environ | cluster.env):
    subprocess.run(["sleep", "0.1"])
print(daemons_of_nobody(os.environ["XDG_CACHE_HOME"]) != [])  # so that to find none later says something
pocket.down()
print(pocket.status())
"""


def daemons_of_nobody(folder):
    """Those that were started with this folder in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == 65534 and folder in process.environ().values():
                found.append(process)
    return found


def everyone_may_enter(folder):
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_it_works_for_an_ordinary_user_too():
    if not everyone_may_enter(ROOT):
        pytest.skip("the course lies where an ordinary user may not read")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        env = os.environ | {"XDG_CACHE_HOME": folder, "HOME": folder}
        code = f"import contextlib, psutil\n{inspect.getsource(daemons_of_nobody)}{AS_NOBODY}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT)
        assert done.stdout.splitlines() == ["['65534', '65534']", "True", "None"], done.stderr
    wait_for(lambda: not daemons_of_nobody(folder))
