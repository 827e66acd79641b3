"""An installed kernel starts through its helper script, with modules, a site's settings, a container, or says why not.

The command ``module`` is a stand-in, a shell function that sets a variable: no machine of CI has environment modules.
The container is ``env``, a program that starts another in a changed environment, as container runtimes do.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dltutorial import cli
from dltutorial.course import kernelspec
from dltutorial.course.kernelspec import Wanted
from dltutorial.errors import CourseError
from dltutorial.launch import sites

ROOT = Path(__file__).parents[2]
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


def start_script(wanted, tmp_path, monkeypatch, later_unset=()):
    """What the helper starts, with a Python that only tells its environment."""
    program = tmp_path / "a place" / "python"
    program.parent.mkdir(exist_ok=True)
    program.write_text(ECHO)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (tmp_path / "helper").write_text(kernelspec.script(wanted))
    for name in later_unset:
        monkeypatch.delenv(name)
    said = subprocess.run(["bash", str(tmp_path / "helper"), "-f", "c.json"], capture_output=True, text=True)
    assert said.stdout == ""
    return said


def test_a_kernel_is_installed_checked_listed_and_removed(place, capsys):
    assert cli.main(["kernel", "install", "--prefix", str(place), *CONTAINER]) == 0
    folder = place / "share" / "jupyter" / "kernels" / "dltutorial"
    assert "does not look there" not in capsys.readouterr().out
    kernel = json.loads((folder / "kernel.json").read_text())
    assert kernel["argv"][0] == "{resource_dir}/kernel-helper.sh"
    assert os.access(folder / "kernel-helper.sh", os.X_OK)
    assert cli.main(["kernel", "list"]) == 0
    assert capsys.readouterr().out == f"dltutorial  any machine  {folder}\n"
    assert cli.main(["kernel", "check"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  "))
    assert rows["device"].startswith(("cpu", "cuda"))
    assert rows["%%ranks"] == "2 ranks answered"
    assert {"python", "torch", "preset", "runs", "data", "Slurm"} <= set(rows)
    assert cli.main(["kernel", "remove"]) == 0
    assert not folder.exists()
    assert cli.main(["kernel", "remove"]) == 2


def test_on_a_login_node_the_kernel_works_and_ranks_are_sent_to_slurm(place, monkeypatch, capsys):
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    (place / "bin").mkdir()
    (place / "bin" / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(place / "bin"), prepend=os.pathsep)
    kernelspec.install(Wanted(site="generic"), place)
    assert cli.main(["kernel", "check"]) == 0
    said = capsys.readouterr().out
    assert "runs on       a login node (DLTUTORIAL_NODE=login): light cells run" in said
    assert "%%ranks       not here: a launch is sent to Slurm" in said


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"container": ("env", "PYTHONPATH="), "python": "no-such-python"}, "no-such-python"),
        ({"modules": ("missing",)}, "no module missing"),
    ],
)  # fmt: skip
def test_a_kernel_that_does_not_start_says_why(place, module, capsys, options, problem):
    kernelspec.install(Wanted(**options), place)
    assert cli.main(["kernel", "check", "--timeout", "60"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "kernel dltutorial does not start" in said and problem in said


def test_each_thing_that_is_wrong_has_its_line(place, monkeypatch, capsys):
    (place / "file").touch()
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(place / "file" / "runs"))
    monkeypatch.setenv("DLTUTORIAL_PRESET", "huge")
    monkeypatch.setenv("DLTUTORIAL_NODE", "laptop")
    kernelspec.install(Wanted(), place)
    assert cli.main(["kernel", "check"]) == 1
    wrong = capsys.readouterr().out.partition("Wrong:\n")[2].splitlines()
    assert [line.split(":")[0].strip() for line in wrong] == ["preset", "runs folder", "runs on"]
    assert "set DLTUTORIAL_RUNS to a folder that you may write to" in wrong[1]


def test_modules_are_loaded_in_order_and_the_kernel_gets_its_words(place, module, tmp_path, monkeypatch):
    said = start_script(Wanted(modules=("gcc/13", "python")), tmp_path, monkeypatch)
    assert "LOADED= load gcc/13 python" in said.stderr
    assert said.stderr.endswith("python -m ipykernel_launcher -f c.json\n")
    assert "OMP_WAIT_POLICY=PASSIVE" in said.stderr


def test_a_sites_modules_network_and_demands_reach_the_kernel(place, module, tmp_path, monkeypatch):
    monkeypatch.setenv("SBATCH_ACCOUNT", "it's mine")
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    wanted = Wanted(site="perlmutter", modules=("gcc",))
    said = start_script(wanted, tmp_path, monkeypatch, ["SBATCH_ACCOUNT"]).stderr  # a hub need not know it
    for line in ("SBATCH_ACCOUNT=it's mine", "LOADED= load pytorch load gcc", "DLTUTORIAL_NODE=login"):
        assert line in said.splitlines()
    assert "NCCL_SOCKET_IFNAME=hsn" in said


@pytest.mark.parametrize("site", sites.names())
def test_what_a_site_demands_is_asked_for_in_its_own_words(site, monkeypatch):
    demanded = kernelspec._DEMANDED.findall((ROOT / "slurm" / "sites" / f"{site}.sh").read_text())
    for name, what in demanded:
        env = {other: "x" for other, _ in demanded if other != name}
        with pytest.raises(CourseError, match=f"site {site} needs {name}: ") as told:
            kernelspec.script(Wanted(site=site), env)
        assert what in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "site, command", [("perlmutter", "shifter"), ("juwels_booster", "apptainer"), ("frontier", "apptainer")]
)
def test_an_image_alone_is_started_as_the_site_does(site, command, module, tmp_path, monkeypatch):
    for name in ("SBATCH_ACCOUNT", "SCRATCH", "MEMBERWORK"):
        monkeypatch.setenv(name, "x")
    (tmp_path / "bin").mkdir()
    runtime = tmp_path / "bin" / command
    runtime.write_text(ECHO)
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    said = start_script(Wanted(site=site, container=("course.sif",)), tmp_path, monkeypatch).stderr
    assert said.splitlines()[-1].startswith(str(runtime)) and "course.sif" in said.splitlines()[-1]
    assert said.endswith(" python -m ipykernel_launcher -f c.json\n")
    assert f"PYTHONPATH={ROOT}" in said


@pytest.mark.parametrize(
    "wanted, why",
    [
        (Wanted(site="mars"), "no site 'mars'; there is: "),
        (Wanted(name="../x"), "--name '../x'"),
        (Wanted(modules=("a;rm",)), "--modules 'a;rm'"),
        (Wanted(container=("course.sif",)), "is an image alone; give the whole command"),
    ],
)
def test_what_cannot_be_is_one_line(wanted, why, tmp_path):
    with pytest.raises(CourseError, match=kernelspec.re.escape(why)) as told:
        kernelspec.install(wanted, tmp_path)
    assert "\n" not in str(told.value) and not list(tmp_path.iterdir())


def test_a_kernel_of_somebody_else_stays(place):
    theirs = place / "share" / "jupyter" / "kernels" / "python3"
    theirs.mkdir(parents=True)
    (theirs / "kernel.json").write_text('{"argv": [], "display_name": "theirs", "language": "python"}')
    with pytest.raises(CourseError, match=r"holds a kernel that is not the course's; choose another --name"):
        kernelspec.install(Wanted("python3"), place)
    with pytest.raises(CourseError, match=r"no kernel 'python3' of the course"):
        kernelspec.remove("python3")
    assert "theirs" in (theirs / "kernel.json").read_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "share").touch()
    with pytest.raises(CourseError, match=r"cannot write the kernel to .*choose --user"):
        kernelspec.install(Wanted(), tmp_path)
