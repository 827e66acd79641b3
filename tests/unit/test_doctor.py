"""The doctor's table and its exit status."""

import dataclasses
import json

import pytest

from dltutorial import machine
from dltutorial.course import doctor
from dltutorial.profile import peaks, probes
from dltutorial.step import compiling


def notebook(folder, name, heading, **about):
    cell = {"cell_type": "markdown", "source": [f"{heading}\n", "text"], "metadata": {}, "id": "a"}
    metadata = {"dltutorial": about | {"minutes": 40, "smoke_s": 55}}
    text = json.dumps({"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    (folder / f"{name}.ipynb").write_text(text)


@pytest.fixture(autouse=True)
def chapters(tmp_path, monkeypatch):
    """The course's folder, which is the working folder, with two chapters."""
    monkeypatch.setenv("DLTUTORIAL_PRESET", "smoke")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / "notebooks"
    folder.mkdir()
    notebook(folder, "00_welcome", "# 00 · Welcome: this machine", chapter="00", better_with=[])
    notebook(folder, "01_train", "# 01 · Train a model", chapter="01", better_with=["no_such_device"])


def line_of(text, word):
    return next(line for line in text.splitlines() if word in line)


def test_the_course_can_run_here():
    text, status = doctor.report()
    assert status == 0
    assert text.endswith("The course can run.")
    assert machine.label() in text
    assert "not measured yet" in text


def test_each_chapter_says_what_it_shows_here_and_how_long_it_takes():
    text, _ = doctor.report()
    assert "shows everything" in line_of(text, "Welcome: this machine")
    assert "not shown here: what needs no_such_device" in line_of(text, "Train a model")
    assert "about 55 s in smoke" in line_of(text, "Train a model")


def test_peaks_taken_on_a_busy_machine_say_so(monkeypatch):
    idle, busy = probes.Figure(10e9, 9e9, "FLOP/s", "as ever"), probes.Figure(10e9, 5e9, "FLOP/s", "in a hurry")
    for figure, says_so in ((idle, False), (busy, True)):
        known = peaks.Peaks("a machine", "cpu", "2026-01-01", {"fp32": figure, "bf16": None}, figure, {})
        monkeypatch.setattr(peaks, "load", lambda known=known: known)
        text, _ = doctor.report()
        assert ("this machine was busy" in text) == says_so
        assert "10 GFLOP/s" in line_of(text, "matmul fp32")
        assert "not available" in line_of(text, "matmul bf16")


@pytest.mark.parametrize("variable", ["DLTUTORIAL_DATA", "DLTUTORIAL_RUNS", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_written_is_missing(tmp_path, monkeypatch, variable):
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file" / "inside"))
    text, status = doctor.report()
    assert status == 1
    assert f"set {variable} to a folder that you may write to" in text


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/false"])
def test_a_kernel_that_cannot_start_is_missing(tmp_path, monkeypatch, program):
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": [program], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    text, status = doctor.report()
    assert status == 1
    assert f"would start {program}, which has no ipykernel" in line_of(text, "jupyter kernel")


def test_torch_that_does_not_load_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    text, status = doctor.report(measure=True)
    assert status == 1
    assert "pip install torch" in line_of(text, "does not load")


def test_a_compiler_is_what_compiling_asks_for(monkeypatch, tmp_path):
    """On Linux clang++ alone is not enough, because torch calls g++ by default."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    program = tmp_path / "clang++"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    here = dataclasses.replace(machine.describe(), device="cpu")
    assert not doctor.has("compiler", here)
    assert "torch.compile needs a C++ compiler (g++)" in dict(doctor.inventory(here))["compiler"]
    monkeypatch.setenv("CXX", str(program))
    assert "C++" not in (compiling.missing("cpu") or "")
