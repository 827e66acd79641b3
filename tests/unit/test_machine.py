"""The description of this machine: ranks, cores, memory, names."""

import os
import platform
import re

import pytest

from dltutorial import machine
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


BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
RANKS = {
    "no launcher": ({}, RankInfo(0, 0, 1, 1, "single")),
    "torchrun": (TORCHRUN, RankInfo(5, 1, 8, 4, "torchrun")),
    "torchrun inside srun": (SRUN | TORCHRUN, RankInfo(5, 1, 8, 4, "torchrun")),
    "a job step that is smaller than its job": (SRUN, RankInfo(4, 0, 5, 1, "slurm")),
    "two ranks on a node": (
        SRUN | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_GTIDS": "0,1"},
        RankInfo(1, 1, 5, 2, "slurm"),
    ),
    "a container that enroot starts in a job step": (
        SRUN | {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "5"},
        RankInfo(4, 0, 5, 1, "slurm"),
    ),
    "an old batch script": (BATCH, RankInfo()),
    "a batch script": (BATCH | {"SLURM_STEP_ID": "4294967291"}, RankInfo()),
    "an interactive shell": (BATCH | {"SLURM_STEP_ID": "4294967290"}, RankInfo()),
}


@pytest.mark.parametrize(("environment", "ranks"), RANKS.values(), ids=RANKS)
def test_ranks_are_read_from_the_variables_of_the_launcher(environment, ranks):
    assert RankInfo.from_env(environment) == ranks


def test_cores_are_the_least_of_joblibs_count_and_slurms_share(no_launcher, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 6)
    assert machine.cores() == 6
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    assert machine.cores() == 3


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


def test_one_process_uses_no_more_threads_than_omp_num_threads_allows(no_launcher, monkeypatch):
    for n_threads, cores in (("1", 1), ("100000", machine.cores())):
        monkeypatch.setenv("OMP_NUM_THREADS", n_threads)
        assert machine.rank_cores() == cores


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


def test_the_units_of_each_precision_are_read_on_x86_and_arm(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nflags : fpu avx2 avx512_bf16x amx_bf16\n")
    assert machine.cpu_units(file) == ("avx2", "amx_bf16")
    file.write_text("Features : asimd asimdhp bf16\n")
    assert machine.cpu_units(file) == ("asimd", "asimdhp", "bf16")
    assert machine.cpu_units(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("capability", "dtypes"),
    [
        ((6, 1), ""),
        ((7, 0), "fp16"),
        ((8, 0), "fp16 bf16 tf32 fp64"),
        ((8, 6), "fp16 bf16 tf32"),
        ((8, 9), "fp16 bf16 tf32 fp8"),
        ((9, 0), "fp16 bf16 tf32 fp64 fp8"),
    ],
)
def test_tensor_cores_follow_the_compute_capability(capability, dtypes):
    assert machine.tensor_core_dtypes(capability) == tuple(dtypes.split())


def test_the_description_fits_this_machine():
    here = machine.describe()
    assert here.cores == machine.cores() >= 1
    assert 2**28 < here.memory_available_bytes <= here.memory_bytes < 2**50
    assert here.device in ("cpu", "cuda")
    assert here.disk_free_bytes > 0


def test_the_preset_fits_the_machine(no_launcher, monkeypatch):
    for n_devices, cores, ci, world_size, preset in [
        (0, 2, "", 1, "smoke"),
        (0, 8, "", 1, "laptop"),
        (0, 8, "true", 1, "smoke"),
        (1, 8, "", 1, "gpu"),
        (1, 8, "", 2, "cluster"),
        (4, 8, "", 1, "cluster"),
    ]:
        monkeypatch.setattr(machine, "n_devices", lambda n=n_devices: n)
        monkeypatch.setattr(machine, "cores", lambda n=cores: n)
        monkeypatch.setenv("CI", ci)
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
        for name, value in ranks.items():
            monkeypatch.setenv(name, value)
        assert machine.suggest_preset() == preset
