"""An installed kernel starts through its helper script, with modules, a site's settings, a container, or says why not.

The command ``module`` is a stand-in, a shell function that sets a variable: no machine of CI has environment modules.
The container is ``env``, a program that starts another in a changed environment, as container runtimes do.
"""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("hub_kernel", ROOT / "hub" / "kernel.py")
kernel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(kernel)
SITES = sorted(file.stem for file in (ROOT / "slurm" / "sites").glob("*.sh"))
MODULE = 'module() { [ "$2" = missing ] && { echo "no module $2" >&2; return 1; }; export LOADED="$LOADED $*"; }'
ECHO = '#!/bin/bash\nenv >&2\necho "$0 $*" >&2\n'
CONTAINER = ("--container", "env IN_CONTAINER=yes", "--python", sys.executable)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where kernels go, and where Jupyter looks for them."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    return tmp_path


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A shell in which ``module`` is known, as at a site."""
    (tmp_path / "profile").write_text(MODULE)
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "profile"))


def install(place, *words):
    assert kernel.main(["install", "--prefix", str(place), *words]) == 0
    return place / "share" / "jupyter" / "kernels" / "dltutorial"


def start_helper(place, monkeypatch, *words, later_unset=()):
    """What the helper starts, with a Python that only tells its environment."""
    program = place / "a place" / "python"
    program.parent.mkdir(exist_ok=True)
    program.write_text(ECHO)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    helper = install(place, *words) / "kernel-helper.sh"
    for name in later_unset:
        monkeypatch.delenv(name)
    said = subprocess.run([str(helper), "-f", "c.json"], capture_output=True, text=True)
    assert said.stdout == ""
    return said.stderr


def refused(*words, action="install"):
    with pytest.raises(SystemExit) as told:
        kernel.main([action, *words])
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("seconds", ["inf", "nan", "0", "-1", "1e30"])
def test_a_time_that_nobody_can_wait_is_refused(seconds):
    with pytest.raises(SystemExit, match="give seconds, from 1 to 86,400"):
        kernel.main(["check", "--timeout", seconds])


def test_a_kernel_is_installed_and_checked_and_jupyter_finds_and_removes_it(place, capsys):
    folder = install(place, *CONTAINER)
    assert "does not look there" not in capsys.readouterr().out
    assert json.loads((folder / "kernel.json").read_text())["argv"][0] == "{resource_dir}/kernel-helper.sh"
    assert kernel.main(["check"]) == 0
    said = capsys.readouterr().out
    assert "The course can run." in said and "Ranks: 2 answered" in said
    assert said.endswith("Kernel dltutorial works.\n")
    for words in (["list"], ["remove", "-y", "dltutorial"]):
        done = subprocess.run([sys.executable, "-m", "jupyter_client.kernelspecapp", *words], capture_output=True)
        assert b"dltutorial" in done.stdout + done.stderr
    assert not folder.exists()


def test_on_a_login_node_the_kernel_works_and_starts_no_ranks(place, monkeypatch, capsys):
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    (place / "bin").mkdir()
    (place / "bin" / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(place / "bin"), prepend=os.pathsep)
    install(place, "--site", "generic")
    assert kernel.main(["check"]) == 0
    said = capsys.readouterr().out
    assert "a login node (DLTUTORIAL_NODE=login): light cells run" in said
    assert "Ranks: not on a login node; a job starts them" in said


@pytest.mark.parametrize(
    "words, problem",
    [
        (("--container", "env PYTHONPATH=", "--python", "no-such-python"), "no-such-python"),
        (("--modules", "missing"), "no module missing"),
    ],
)
def test_a_kernel_that_does_not_start_says_why(place, module, words, problem):
    install(place, *words)
    with pytest.raises(SystemExit, match=rf"^kernel dltutorial does not start: .*{problem}") as told:
        kernel.main(["check", "--timeout", "60"])
    assert "\n" not in str(told.value)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name, value, wrong",
    [
        ("DLTUTORIAL_PRESET", "huge", "course: the doctor says what is missing"),
        ("PYTHONOPTIMIZE", "1", "course: the doctor says what is missing"),
        ("DLTUTORIAL_RUNS", "FILE/runs", "course: the doctor says what is missing"),
        ("SLURM_JOB_GPUS", "0", "device: this job has GPUs, but torch sees none"),
    ],
)
def test_what_is_wrong_has_its_line(place, monkeypatch, capfd, name, value, wrong):
    (place / "FILE").touch()
    monkeypatch.setenv(name, value.replace("FILE", str(place / "FILE")))
    if name == "PYTHONOPTIMIZE":  # which leaves an assert out
        monkeypatch.setenv("DLTUTORIAL_PRESET", "huge")
    install(place)
    assert kernel.main(["check"]) == 1
    said = capfd.readouterr().out
    assert re.match(f"  {wrong}", said.partition("Wrong:\n")[2])
    assert name != "DLTUTORIAL_RUNS" or "set DLTUTORIAL_RUNS to a folder that you may write to" in said


def test_modules_are_loaded_in_order_and_the_kernel_gets_its_words(place, module, monkeypatch):
    said = start_helper(place, monkeypatch, "--modules", "gcc/13 python a;b")
    assert "LOADED= load gcc/13 python a;b\n" in said
    assert said.endswith("python -m ipykernel_launcher -f c.json\n")
    assert "OMP_WAIT_POLICY=PASSIVE" in said


def test_a_sites_modules_network_and_demands_reach_the_kernel(place, module, monkeypatch):
    monkeypatch.setenv("SBATCH_ACCOUNT", "it's mine")
    monkeypatch.setenv("SCRATCH", str(place))
    words = ("--site", "perlmutter", "--modules", "gcc")
    said = start_helper(place, monkeypatch, *words, later_unset=["SBATCH_ACCOUNT"])  # a hub need not know it
    for line in ("SBATCH_ACCOUNT=it's mine", "LOADED= load pytorch load gcc", "DLTUTORIAL_NODE=login"):
        assert line in said.splitlines()
    assert "NCCL_SOCKET_IFNAME=hsn" in said


@pytest.mark.parametrize("site", SITES)
def test_what_a_site_demands_is_asked_for_in_its_own_words(site, monkeypatch):
    demanded = kernel.DEMANDED.findall((ROOT / "slurm" / "sites" / f"{site}.sh").read_text())
    for name, _ in demanded:
        monkeypatch.setenv(name, "x")
    for name, what in demanded:
        monkeypatch.setenv(name, "")
        assert refused("--site", site).startswith(f"site {site} needs {name}: {what}")
        monkeypatch.setenv(name, "x")


@pytest.mark.parametrize(
    "site, command", [("perlmutter", "shifter"), ("juwels_booster", "apptainer"), ("frontier", "apptainer")]
)
def test_an_image_alone_is_started_as_the_site_does(site, command, module, place, monkeypatch):
    for name in ("SBATCH_ACCOUNT", "SCRATCH", "MEMBERWORK"):
        monkeypatch.setenv(name, "x")
    (place / "bin").mkdir()
    runtime = place / "bin" / command
    runtime.write_text(ECHO)
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    said = start_helper(place, monkeypatch, "--site", site, "--container", "course.sif")
    assert said.splitlines()[-1].startswith(str(runtime)) and "course.sif" in said.splitlines()[-1]
    assert said.endswith(" python -m ipykernel_launcher -f c.json\n")
    assert f"PYTHONPATH={ROOT}" in said


def test_what_cannot_be_is_one_line(tmp_path, capsys):
    where = ("--prefix", str(tmp_path))
    assert refused(*where, "--name", "../x").startswith("--name '../x'")
    assert "is an image alone; give the whole command" in refused(*where, "--container", "course.sif")
    refused(*where, "--site", "mars")
    assert "invalid choice: 'mars'" in capsys.readouterr().err
    bad = ("apptainer exec --bind '/my dir:/x' c.sif", "  ", "apptainer exec\nc.sif", "apptainer exec $HOME/c.sif")
    for words in bad:
        assert "word by word, in one line; no word may hold a blank" in refused(*where, "--container", words)
    assert not list(tmp_path.iterdir())
    (tmp_path / "my image.sif").touch()
    assert "has a blank in its name" in refused(*where, "--container", str(tmp_path / "my image.sif"))
    install(tmp_path / "long", "--container", f"env {'x' * 300}=1")
    (tmp_path / "share").touch()
    assert re.match("cannot write .*choose another --prefix", refused(*where))


def test_files_named_from_here_are_found_from_a_notebooks_folder_too(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "c.sif").touch()
    helper = (install(place, "--container", "apptainer exec c.sif") / "kernel-helper.sh").read_text()
    assert f"DLTUTORIAL_CONTAINER='apptainer exec {place / 'c.sif'}'" in helper
    helper = (install(place, "--python", "bin/python") / "kernel-helper.sh").read_text()
    assert f"DLTUTORIAL_PYTHON={place / 'bin' / 'python'}" in helper


@pytest.mark.parametrize("kib", [0, 1])
def test_on_a_full_disk_the_older_kernel_stays(place, kib):
    before = {file.name: file.read_text() for file in install(place).iterdir()}
    words = [sys.executable, "hub/kernel.py", "install", "--prefix", str(place), "--modules", "m " * 600]
    full = f"ulimit -f {kib}; trap '' XFSZ; exec {shlex.join(words)}"
    done = subprocess.run(["bash", "-c", full], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch("cannot write .*(File too large|No space).*; make room.*\n", done.stderr)
    there = place / "share" / "jupyter" / "kernels" / "dltutorial"
    assert {file.name: file.read_text() for file in there.iterdir()} == before


THEIRS = '{"argv": ["/mine"], "display_name": "dltutorial", "language": "python"}'
OURS = '{"argv": [], "display_name": "dltutorial", "language": "python", "metadata": {"dltutorial": {}}}'


@pytest.mark.parametrize("text", ["{", "[]", "{}", "3", '{"argv": 5, "display_name": "x", "language": "python"}'])
def test_a_damaged_kernel_is_one_line_of_the_check(place, text):
    there = place / "share" / "jupyter" / "kernels" / "dltutorial"
    there.mkdir(parents=True)
    (there / "kernel.json").write_text(text)
    assert "install it" in refused("--name", "dltutorial", action="check")


def test_a_link_in_a_kernels_place_stays(place, tmp_path):
    there = place / "share" / "jupyter" / "kernels" / "dltutorial"
    there.parent.mkdir(parents=True)
    (mine := tmp_path / "mine").mkdir()
    there.symlink_to(mine)
    assert "choose another --name" in refused("--prefix", str(place))
    assert there.is_symlink()


@pytest.mark.parametrize(
    "files",
    [
        {"kernel.json": THEIRS},
        {"kernel.json": THEIRS.replace("}", ', "metadata": "of dltutorial"}')},
        {"kernel.json": THEIRS, "notes": "mine"},
        {"kernel.json": OURS, "notes": "mine"},
        {"kernel.json": "cut"},
        {"kernel.json": "[]"},
        {"notes": "mine"},
        {"kernel.json": None},
    ],
)
def test_a_kernel_of_somebody_else_stays(place, files):
    theirs = place / "share" / "jupyter" / "kernels" / "python3"
    theirs.mkdir(parents=True)
    for name, text in files.items():
        os.mkfifo(theirs / name) if text is None else (theirs / name).write_text(text)
    said = refused("--prefix", str(place), "--name", "python3")
    assert "holds a kernel that is not the course's; choose another --name" in said
    assert {file.name: file.read_text() if file.is_file() else None for file in theirs.iterdir()} == files


@pytest.mark.parametrize("output", [">/dev/full", ">&-", "2>&-", ">&- 2>&- <&-", ">/dev/full 2>&-"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_words_that_cannot_be_printed_are_no_traceback(place, output, unbuffered):
    words = shlex.join([sys.executable, str(ROOT / "hub" / "kernel.py"), "install", "--prefix", str(place)])
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(f"{words} {output}", shell=True, stderr=subprocess.PIPE, text=True, env=environment)
    is_full = "full" in output
    assert ended.returncode == is_full
    assert ended.stderr == (
        "kernel: No space left on device; see that there is room, and that its words can be printed\n"
        if is_full and "2>" not in output
        else ""
    )
    assert (place / "share" / "jupyter" / "kernels" / "dltutorial" / "kernel.json").exists()
