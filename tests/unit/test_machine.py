"""What this process runs on: ranks, cores, memory, names."""

import dataclasses
import os
import platform
import re
import subprocess
import sys

import pytest

from dltutorial import limits, machine
from dltutorial.machine import RankInfo

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "4", "SLURM_LOCALID": "0"},
    **{"SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "5", "SLURM_GTIDS": "4"},
}


@pytest.fixture
def no_launcher(monkeypatch):
    for name in [*os.environ]:
        if name.startswith("SLURM_") or name in {*TORCHRUN, "CI", "OMP_NUM_THREADS"}:
            monkeypatch.delenv(name)


def test_without_a_launcher_there_is_one_rank():
    assert RankInfo.from_env({}) == RankInfo(0, 0, 1, 1, "single")


def test_torchrun_variables_are_read():
    assert RankInfo.from_env(TORCHRUN) == RankInfo(5, 1, 8, 4, "torchrun")


def test_torchrun_inside_srun_wins():
    assert RankInfo.from_env({**SRUN, **TORCHRUN}).launcher == "torchrun"


def test_a_job_steps_own_size_counts_not_its_jobs():
    assert RankInfo.from_env(SRUN) == RankInfo(4, 0, 5, 1, "slurm")
    first = {**SRUN, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_GTIDS": "0,1"}
    assert RankInfo.from_env(first) == RankInfo(1, 1, 5, 2, "slurm")


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967290"}])
def test_a_batch_script_or_interactive_shell_is_one_process(step):
    batch = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "8",
    }
    assert RankInfo.from_env({**batch, **step}) == RankInfo()


def test_cores_are_the_least_of_joblibs_count_and_slurms_share(no_launcher, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 6)
    assert limits.cores() == 6
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    assert limits.cores() == 3


def test_memory_without_limits_is_the_machines():
    total, available = limits.memory_bytes()
    assert 2**28 < available <= total < 2**50


def test_rank_cores_are_shared_under_torchrun_and_owned_under_srun(no_launcher, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert machine.rank_cores() == 8
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert machine.rank_cores() == 2
    for name in TORCHRUN:
        monkeypatch.delenv(name)
    for name, value in {**SRUN, "SLURM_GTIDS": "0,1", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert machine.rank_cores() == 4
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert machine.rank_cores() == 8


def test_use_cores_sets_torchs_threads(no_launcher):
    import torch

    before = torch.get_num_threads()
    try:
        assert machine.use_cores(1) == torch.get_num_threads() == 1
        assert machine.use_cores() == torch.get_num_threads() == machine.cores()
    finally:
        torch.set_num_threads(before)


def test_the_label_is_short_and_without_the_hosts_name():
    assert 3 < len(machine.label()) < 80
    assert platform.node() not in re.findall(r"[\w.-]+", f"{machine.label()} {machine.describe()}")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("model name\t: Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz\n", "Intel Xeon Platinum 8480+"),
        ("model name : AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763"),
        ("Features : fp asimd\n", None),
    ],
)
def test_the_processors_name_is_cleaned(tmp_path, line, name):
    file = tmp_path / "cpuinfo"
    file.write_text(line)
    assert machine.cpu_model(file) == name


def test_precision_units_are_read_on_x86_and_arm(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nflags : fpu avx2 avx512_bf16x amx_bf16\n")
    assert machine.cpu_units(file) == ("avx2", "amx_bf16")
    file.write_text("Features : asimd asimdhp bf16\n")
    assert machine.cpu_units(file) == ("asimd", "asimdhp", "bf16")
    assert machine.cpu_units(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("capability", "there", "not_there"),
    [
        ((6, 1), "", "fp16 bf16 tf32 fp8 fp64"),
        ((7, 0), "fp16", "bf16 tf32 fp8 fp64"),
        ((8, 0), "fp16 bf16 tf32 fp64", "fp8"),
        ((8, 6), "fp16 bf16 tf32", "fp8 fp64"),
        ((8, 9), "fp16 bf16 tf32 fp8", "fp64 fp4"),
        ((9, 0), "fp16 bf16 tf32 fp8 fp64", "fp4"),
    ],
)
def test_tensor_cores_follow_the_compute_capability(capability, there, not_there):
    units = machine.tensor_core_dtypes(capability)
    assert set(there.split()) <= set(units)
    assert not set(not_there.split()) & set(units)


def test_describe_sees_this_machine():
    here = machine.describe()
    assert here.cores == machine.cores() >= 1
    assert here.device in ("cpu", "cuda")
    assert here.disk_free_bytes > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        here.cores = 1


def test_the_preset_fits_the_machine(no_launcher, monkeypatch):
    for n_devices, cores, ci, world_size, preset in [
        (0, 2, "", 1, "smoke"),
        (0, 8, "", 1, "laptop"),
        (0, 8, "true", 1, "smoke"),
        (0, 8, "", 2, "laptop"),
        (1, 8, "", 1, "gpu"),
        (1, 8, "true", 2, "cluster"),
        (4, 8, "", 1, "cluster"),
    ]:
        monkeypatch.setattr(machine, "n_devices", lambda n=n_devices: n)
        monkeypatch.setattr(machine, "cores", lambda n=cores: n)
        monkeypatch.setenv("CI", ci)
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
        for name, value in ranks.items():
            monkeypatch.setenv(name, value)
        assert machine.suggest_preset() == preset


def test_versions_are_those_that_are_imported():
    import torch

    versions = machine.versions()
    assert set(versions) == {"python", "torch", "numpy", "dltutorial"}
    assert torch.__version__.startswith(versions["torch"])  # a build's own suffix, "+cu124", is in one of them alone


@pytest.mark.skipif(machine.device() == "cuda", reason="the name of a GPU is asked of torch")
def test_label_versions_and_preset_load_no_torch():
    code = "import sys; from dltutorial import machine as m; m.label(), m.versions(), m.suggest_preset(), m.cores()"
    subprocess.run([sys.executable, "-c", code + "; sys.exit('torch' in sys.modules)"], check=True)


def test_a_lone_process_keeps_to_omp_num_threads(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine.rank_cores() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    assert machine.rank_cores() == machine.cores()
