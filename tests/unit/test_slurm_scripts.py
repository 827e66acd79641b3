"""The scripts of ``slurm/`` can be parsed, end at the first error, and name no account and no path."""

import re
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("script", SCRIPTS, **named)
def test_it_parses(script):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_script_is_careful_and_says_how_it_is_called(script):
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert next(line for line in code(script) if line.strip()).startswith("set -euo pipefail ")
    assert f"slurm/{script.name}" in "\n".join(lines[:12])
    assert "--open-mode=append" in directives(script)


@pytest.mark.parametrize("script", JOBS, **named)
def test_a_job_script_names_no_account_partition_or_path(script):
    for directive in directives(script):
        option = re.match(r"--?([a-z-]+)", directive)[1]
        assert option not in PERSONAL
        assert "/" not in directive


@pytest.mark.parametrize("site", [site.stem for site in SITES])
def test_a_site_cites_its_documentation(site):
    text = (FOLDER / "sites" / f"{site}.sh").read_text()
    assert len(re.findall(r"https://[\w.-]+/\S+", text)) >= (1 if site == "pocket" else 2)
    assert "SBATCH_ACCOUNT=" not in "\n".join(code(FOLDER / "sites" / f"{site}.sh")).replace(
        "export SBATCH_ACCOUNT=<", ""
    )


@pytest.mark.parametrize("site", ["perlmutter", "juwels_booster", "jupiter", "frontier"])
@pytest.mark.parametrize("missing", ["SBATCH_ACCOUNT", "the scratch folder"])
def test_a_site_says_in_one_line_which_variable_is_missing(site, missing):
    env = {"PATH": "/usr/bin:/bin", "USER": "somebody"}
    if missing == "the scratch folder":
        env["SBATCH_ACCOUNT"] = "some"
        missing = "MEMBERWORK" if site == "frontier" else "SCRATCH"
    source = f'module() {{ :; }}; source "{FOLDER / "sites" / site}.sh"'
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, env=env)
    assert done.returncode != 0
    assert missing in done.stderr
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


def test_the_notebook_server_listens_on_the_loopback_address():
    """With the token that Jupyter reads from its environment."""
    text = "\n".join(code(FOLDER / "notebook.sbatch"))
    assert "--ip=127.0.0.1" in text
    assert "JUPYTER_TOKEN" in text
