"""The scripts of ``slurm/`` are shell that parses, careful, and nobody's own: no account, no path."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

FOLDER = Path(__file__).parents[2] / "slurm"
SCRIPTS = sorted([*FOLDER.rglob("*.sbatch"), *FOLDER.rglob("*.sh")])
JOBS = [script for script in SCRIPTS if script.suffix == ".sbatch"]
SITES = sorted((FOLDER / "sites").glob("*.sh"))
PERSONAL = ("account", "partition", "reservation", "qos", "constraint", "mail-user", "chdir", "A", "p")
named = {"ids": lambda path: path.name}


def code(script):
    """The lines that are not comments."""
    return [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]


def directives(script):
    return re.findall(r"^#SBATCH\s+(.*?)(?:\s+#.*)?$", script.read_text(), re.MULTILINE)


def test_there_is_a_script_for_each_purpose_and_a_file_for_each_site():
    assert {"train", "scaling", "profile", "notebook", "tune", "tune_ray"} == {script.stem for script in JOBS}
    wanted = {"perlmutter", "juwels_booster", "jupiter", "frontier", "generic", "pocket"}
    assert wanted == {site.stem for site in SITES}


@pytest.mark.parametrize("script", SCRIPTS, **named)
def test_it_parses(script):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, **named)
def test_no_backticks_and_no_cd_that_may_fail(script):
    text = "\n".join(code(script))
    assert "`" not in text
    assert not re.search(r"^\s*cd ", text, re.MULTILINE)


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_script_is_careful_and_says_how_it_is_called(script):
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert next(line for line in code(script) if line.strip()) == "set -euo pipefail"
    assert f"slurm/{script.name}" in "\n".join(lines[:12])


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_that_is_queued_again_keeps_what_its_first_start_said(script):
    assert "--open-mode=append" in directives(script)


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_script_that_bash_runs_says_that_it_is_none(script, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_SUBMIT_DIR", raising=False)
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.endswith("this is no job; send the script with sbatch\n")
    assert not list(tmp_path.iterdir())


def test_what_a_job_has_refused_at_first_it_does_not_take_when_it_is_queued_again(tmp_path):
    """A run of that number is another cluster's, in the same folder of runs."""
    (tmp_path / "runs" / "train-7").mkdir(parents=True)
    given = {"SLURM_SUBMIT_DIR": str(FOLDER.parent), "SLURM_JOB_ID": "7", "DLTUTORIAL_RUNS": str(tmp_path / "runs")}
    given |= {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n0", "SLURM_CPUS_ON_NODE": "1", "RUN_NAME": ""}
    for restarts, told in (("0", "is there already, of another job"), ("1", "is of another job with this number")):
        done = subprocess.run(
            ["bash", str(FOLDER / "train.sbatch")], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | given | {"SLURM_RESTART_COUNT": restarts},
        )  # fmt: skip
        assert (done.returncode, done.stderr.startswith(f"{tmp_path / 'runs' / 'train-7'} {told}")) == (2, True)


SERVER = """#!/bin/bash
[ "$1" != -c ] || exec echo "a-token-of-this-start"
echo "the server has the token $JUPYTER_TOKEN"
"""


def notebook_job(folder, restarts):
    """The script with a server that ends at once; its job is number 7."""
    (folder / "python").write_text(SERVER)
    (folder / "python").chmod(0o755)
    given = {"SLURM_SUBMIT_DIR": str(FOLDER.parent), "SLURM_JOB_ID": "7", "DLTUTORIAL_RUNS": str(folder / "runs")}
    given |= {"DLTUTORIAL_PYTHON": str(folder / "python"), "SLURM_RESTART_COUNT": restarts}
    script = ["bash", str(FOLDER / "notebook.sbatch")]
    return subprocess.run(script, cwd=folder, env=os.environ | given, capture_output=True, text=True)


@pytest.mark.parametrize(("restarts", "name"), [("0", "notebook-7.token"), ("2", "notebook-7-start-3.token")])
def test_the_notebook_server_leaves_a_file_that_has_its_tokens_name(tmp_path, restarts, name):
    (tmp_path / "runs").mkdir()
    (mine := tmp_path / "runs" / name).write_text("mine\n")
    done = notebook_job(tmp_path, restarts)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{mine} is there already, of another job with this number, and stays; ")
    assert mine.read_text() == "mine\n"


def test_a_notebook_server_that_is_queued_again_goes_on_beside_the_token_of_a_killed_node(tmp_path):
    (tmp_path / "runs").mkdir()
    (left := tmp_path / "runs" / "notebook-7.token").write_text("of the first start\n")
    done = notebook_job(tmp_path, "1")
    assert done.returncode == 0, done.stderr
    assert f"cat {tmp_path}/runs/notebook-7-start-2.token" in done.stdout
    assert done.stdout.endswith("the server has the token a-token-of-this-start\n")
    assert list((tmp_path / "runs").iterdir()) == [left]
    assert left.read_text() == "of the first start\n"


@pytest.mark.parametrize("name", ["../evil", "a b", "-x", "x" * 101, "a\nb"])
def test_a_name_that_no_run_can_have_is_refused_before_ranks_start(tmp_path, name):
    given = {"SLURM_SUBMIT_DIR": str(FOLDER.parent), "RUN_NAME": name, "DLTUTORIAL_NODE": "compute"}
    done = subprocess.run(
        ["bash", str(FOLDER / "train.sbatch")], cwd=tmp_path, env=os.environ | given, capture_output=True, text=True
    )
    assert done.returncode == 2
    told = f"RUN_NAME='{name}': at most 100 letters, digits, '.', '_' and '-', the first a letter or digit"
    assert done.stderr.strip() == told


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_script_names_no_account_partition_or_path(script):
    for directive in directives(script):
        option = re.match(r"--?([a-z-]+)", directive)[1]
        assert option not in (
            "account",
            "partition",
            "reservation",
            "qos",
            "constraint",
            "mail-user",
            "chdir",
            "A",
            "p",
        )
        assert "/" not in directive


@pytest.mark.parametrize("script", JOBS, **named)
def test_its_directives_stand_before_its_first_command(script):
    """sbatch ignores those after it."""
    text = script.read_text()
    assert text.rindex("#SBATCH") < text.index("set -euo")


def settings(site):
    """Variable → its value, and the comment that stands above it, without addresses."""
    comment, found, is_new = [], {}, True  # is_new: the next comment is about what follows it
    for line in (FOLDER / "sites" / f"{site}.sh").read_text().splitlines():
        if match := re.match(r"\s*# ?(.*)", line):
            comment = [match[1]] if is_new else [*comment, match[1]]
            is_new = False
        elif match := re.match(r"\s*export (.*)", line):
            reason = " ".join(line for line in comment if not line.startswith(("https://", " ")))
            values = re.findall(r'([A-Z][A-Z0-9_]*)=("[^"]*"|[^\s#]*)', match[1])
            found |= {name: (value, reason) for name, value in values}
            is_new = True
        elif not line.strip():
            is_new = True
    return found


@pytest.mark.parametrize("site", [site.stem for site in SITES])
def test_every_setting_of_a_site_has_a_reason(site):
    found = settings(site)
    assert found
    assert not [variable for variable, (_, reason) in found.items() if len(reason) < 15]


@pytest.mark.parametrize("site", [site.stem for site in SITES])
def test_a_site_cites_its_documentation(site):
    text = (FOLDER / "sites" / f"{site}.sh").read_text()
    assert len(re.findall(r"https://[\w.-]+/\S+", text)) >= (1 if site == "pocket" else 2)
    assert "SBATCH_ACCOUNT=" not in "\n".join(code(FOLDER / "sites" / f"{site}.sh")).replace(
        "export SBATCH_ACCOUNT=<", ""
    )


@pytest.mark.parametrize("site", ["perlmutter", "juwels_booster", "jupiter", "frontier"])
def test_a_site_that_needs_an_account_says_so_in_one_line(site):
    source = f'source "{FOLDER / "sites" / site}.sh"'
    done = subprocess.run(["bash", "-uc", source], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert "SBATCH_ACCOUNT" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("site", [site.stem for site in SITES])
def test_a_site_can_be_sourced(site):
    """By a shell that stops at the first error, with what that site's login nodes set."""
    env = {"PATH": "/usr/bin:/bin", "USER": "somebody", "SBATCH_ACCOUNT": "some", "SCRATCH": "scratch"}
    env |= {"MEMBERWORK": "work", "SLURM_CONF": "some.conf"}
    script = f'module() {{ echo "module $*"; }}; source "{FOLDER / "sites" / site}.sh"; env'
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    if site != "pocket":
        assert "DLTUTORIAL_RUNS=" in done.stdout
    assert "${" not in done.stdout


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        *(
            ("DLTUTORIAL_RANKS_PER_NODE", value, "is no number of ranks")
            for value in ("banana", "0", "-1", "2.5", "4 4")
        ),
        ("MAX_RESTARTS", "abc", "is no number of restarts"),
        ("DLTUTORIAL_LAUNCHER", "mpirun", "is no launcher; choose torchrun or srun"),
    ],
)
def test_a_setting_that_cannot_be_ends_a_job_in_one_line(variable, value, words):
    source = f'set -euo pipefail; source "{FOLDER / "ranks.sh"}"; in_force'
    env = {"PATH": "/usr/bin:/bin", variable: value}
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert f"{variable}={value} {words}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_node_whose_address_slurm_does_not_tell_is_named(tmp_path):
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$2" = hostnames ] && echo n1 || echo "NodeName=n1"\n')
    (tmp_path / "scontrol").chmod(0o755)
    source = f'set -euo pipefail; source "{FOLDER / "ranks.sh"}"; start_ranks 2 dltutorial train'
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "scontrol does not say the address of n1" in done.stderr


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_sent_from_another_folder_says_where_to_go(script, tmp_path):
    done = subprocess.run(
        ["bash", str(script)], env={"PATH": "/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"submitted from {tmp_path}, which is not the course's folder: cd there, and sbatch again"
    ]


def in_job(folder, srun, **more):
    """The environment of a job whose ``srun`` does that; the real one is in ``tests/slurm``."""
    slurm = {
        "srun": srun,
        "scontrol": 'case "$*" in *hostnames*) echo n0;; *node*) echo NodeAddr=::1;; *) echo "$@";; esac',
    }
    for name, does in slurm.items():
        (folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (folder / name).chmod(0o755)
    job = {"JOB_ID": "7", "JOB_NUM_NODES": "1", "JOB_NODELIST": "n0", "CPUS_ON_NODE": "1"}
    job |= {"SUBMIT_DIR": str(FOLDER.parent), "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "1"}
    return {"PATH": f"{folder}:/usr/bin:/bin"} | {f"SLURM_{name}": value for name, value in job.items()} | more


def started(script, env):
    """How a job's script ended, and what it has said."""
    return subprocess.run(["bash", str(FOLDER / f"{script}.sbatch")], env=env, capture_output=True, text=True)


no_nsys = pytest.mark.skipif(bool(shutil.which("nsys", path="/usr/bin:/bin")), reason="nsys is here")


@pytest.mark.parametrize(
    ("script", "nsys", "begins"),
    [
        ("scaling", False, "--name scaling-7-1"),
        pytest.param("profile", False, "/runs/profiles/profile-7", marks=no_nsys),
        ("profile", True, "--name profile-7"),
    ],
)
def test_each_start_of_a_job_has_a_run_of_its_own_and_overwrites_none(tmp_path, script, nsys, begins):
    env = in_job(tmp_path, 'echo "$@"', DLTUTORIAL_RUNS=str(tmp_path / "runs"))
    if nsys:
        (tmp_path / "nsys").symlink_to("/bin/true")
    for count, ending in ((None, ""), ("1", "-start-2"), ("10", "-start-11")):
        done = started(script, env | ({"SLURM_RESTART_COUNT": count} if count else {}))
        assert done.returncode == 0, done.stderr
        assert re.search(rf"{begins}{ending}(?=[. ])", done.stdout), done.stdout
        assert not nsys or f"--output={tmp_path}/runs/profiles/profile-7{ending}-%h" in done.stdout
        assert "overwrite" not in done.stdout


def test_an_array_index_that_is_no_number_of_nodes_is_told(tmp_path):
    for index, told in (("0", "array index 0 is no number of nodes"), ("2", "array index 2 is more than the 1 nodes")):
        done = started("scaling", in_job(tmp_path, "echo ran", SLURM_ARRAY_TASK_ID=index))
        assert (done.returncode, "ran" in done.stdout.split()) == (2, False)
        assert done.stderr.startswith(told) and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "count", "taken"),
    [
        ("scaling", "0", "scaling-7-1"),
        ("scaling", "2", "scaling-7-1-start-3"),
        ("profile", "0", "profile-7"),
        ("profile", "0", "profiles/profile-7.json.gz"),
        ("profile", "1", "profiles/profile-7-start-2-n0.nsys-rep"),
        ("train", "0", "train-7"),
    ],
)
def test_what_another_job_of_this_number_has_left_stays_and_is_named_in_one_line(tmp_path, script, count, taken):
    """It was another cluster's, say: their numbers are the same, and so may be the folder of runs."""
    env = in_job(tmp_path, "echo ran", DLTUTORIAL_RUNS=str(tmp_path / "runs"), SLURM_RESTART_COUNT=count)
    (tmp_path / "runs" / taken).mkdir(parents=True)
    done = started(script, env)
    assert (done.returncode, "ran" in done.stdout.split()) == (2, False)
    (line,) = done.stderr.splitlines()
    assert line == (
        f"{tmp_path}/runs/{taken} is there already, of another job with this number, and stays; "
        "move it away, or sbatch the job again: it gets another number"
    )


def test_a_training_that_is_queued_again_or_has_a_name_goes_on_in_its_folder(tmp_path):
    (tmp_path / "runs" / "train-7").mkdir(parents=True)
    env = in_job(tmp_path, 'echo "$@"', DLTUTORIAL_RUNS=str(tmp_path / "runs"))
    for more in ({"SLURM_RESTART_COUNT": "1"}, {"RUN_NAME": "train-7"}):
        assert "--name train-7 --resume" in started("train", env | more).stdout


@pytest.mark.parametrize(
    ("srun", "status"),
    [("exec sleep 60", 138), ("trap 'exit 75' USR1; while :; do sleep 0.1; done", 75), ("exit 0", 0), ("exit 3", 3)],
    ids=["dies of the warning", "writes a checkpoint", "ends by itself", "fails"],
)  # fmt: skip
def test_a_warned_job_waits_for_its_ranks_and_queues_again(tmp_path, srun, status):
    """With an ``srun`` that acts for theirs; the real one is in ``tests/slurm``."""
    env = in_job(tmp_path, srun)
    started = subprocess.Popen(["bash", FOLDER / "train.sbatch"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        warned = "exit 0" not in srun and "exit 3" not in srun
        if warned:

            def sleeps():
                with contextlib.suppress(psutil.Error):  # one of them has just ended
                    below = psutil.Process(started.pid).children(recursive=True)
                    return [process for process in below if process.name() == "sleep"]

            wait_for(sleeps)
            started.send_signal(signal.SIGUSR1)
        said, _ = started.communicate(timeout=120)
    finally:
        started.kill()
    assert started.returncode == status
    assert ("requeue 7" in said) == warned


def test_a_port_that_is_taken_ends_a_ray_job_in_one_line(tmp_path):
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$2" = hostnames ] && echo n1 || echo "NodeAddr=127.0.0.1 "\n')
    (tmp_path / "scontrol").chmod(0o755)
    with contextlib.ExitStack() as stack:
        for port in range(20000, 30000):
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                taken.listen()
                break
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DLTUTORIAL_PYTHON": "true", "DLTUTORIAL_RUNS": str(tmp_path)}
        job = {"JOB_ID": str(port - 20000), "JOB_NUM_NODES": "1", "JOB_NODELIST": "n1", "CPUS_ON_NODE": "1"}
        env |= {f"SLURM_{name}": value for name, value in job.items()} | {"SLURM_SUBMIT_DIR": str(FOLDER.parent)}
        done = subprocess.run(["bash", str(FOLDER / "tune_ray.sbatch")], env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"port {port} of n1 is taken; queue the job anew, under its number it has another"
    ]


def test_what_a_killed_node_of_ray_leaves_the_next_one_removes_but_nothing_of_the_living(tmp_path):
    def node(number, *command):
        return subprocess.Popen(["bash", str(FOLDER / "ray_node.sh"), str(tmp_path / f"ray-{number}"), *command])

    (tmp_path / "ray-notes").mkdir()  # nobody's
    (mine := tmp_path / "mine").mkdir()
    (tmp_path / "ray-4").symlink_to(mine)
    killed, living = node(1, "sleep", "60"), node(2, "sleep", "60")
    try:
        for number in (1, 2):
            wait_for((tmp_path / f"ray-{number}" / "lock").exists)
        for process in [*wait_for(lambda: [p for p in psutil.Process(killed.pid).children() if p.name() == "sleep"]),
                        psutil.Process(killed.pid)]:  # fmt: skip
            process.kill()
        killed.wait()
        assert (tmp_path / "ray-1").exists()
        assert node(3, "bash", "-c", "exit 5").wait(30) == 5
        assert {path.name for path in tmp_path.iterdir()} == {"ray-2", "ray-4", "ray-notes", "mine"}
        assert not list(mine.iterdir())
        living.terminate()
        assert living.wait(30) == 143
        assert {path.name for path in tmp_path.iterdir()} == {"ray-4", "ray-notes", "mine"}
    finally:
        for process in psutil.Process().children(recursive=True):
            if process.name() == "sleep":
                process.kill()
