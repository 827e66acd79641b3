"""Traces, timelines, notebooks and a cluster's notes of any bytes: what they are, or one line; no work is lost."""

import gzip
import json
import shutil

from forking import is_line
from hostile import JSON, NUMBERS, TEXT, as_json, changed, damaged, examples, json_bytes
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.course import exercise_status, exercises, notebooks
from dltutorial.errors import CourseError
from dltutorial.launch import pocket_daemons as daemons
from dltutorial.profile import trace, trace_summary
from dltutorial.profile.timeline import Timeline


def or_line(act, *args):
    """What comes of it; None if it is refused in one line."""
    try:
        return act(*args)
    except CourseError as error:
        assert is_line(str(error)), str(error)
        return None


# Traces

CATEGORIES = st.sampled_from([*trace._CATEGORIES, "user_annotation", "ac2g"])
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "M"]), "cat": CATEGORIES, "ts": NUMBERS, "dur": st.floats(0, 1e9) | NUMBERS},
    optional={"args": JSON},
).flatmap(
    lambda event: st.fixed_dictionaries({
        "name": st.sampled_from(["ProfilerStep#1", "load", "aten::mm"]) | TEXT,
        "pid": st.integers(0, 3) | JSON, "tid": st.integers(0, 3) | TEXT,
    }).map(lambda more: event | more)
)  # fmt: skip
TRACE = {"traceEvents": [
    {"ph": "X", "name": "ProfilerStep#1", "cat": "user_annotation", "ts": 10.0, "dur": 90.0, "pid": 1, "tid": 1},
    {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 20.5, "dur": 9, "pid": 0, "tid": 7, "args": {"stream": 7}},
]}  # fmt: skip


@examples(400)
@given(
    st.lists(EVENTS, max_size=6).map(lambda events: json.dumps({"traceEvents": events}).encode())
    | as_json(changed(TRACE))
    | json_bytes()
    | damaged(json.dumps(TRACE).encode()),
    st.sampled_from(["plain", "packed", "half"]),
)
def test_a_trace_is_drawn_or_refused_in_one_line(place, content, how):
    file = place / ("trace.json" if how == "plain" else "trace.json.gz")
    packed = gzip.compress(content)
    file.write_bytes({"plain": content, "packed": packed, "half": packed[: len(packed) // 2]}[how])
    found = or_line(trace.read, file)
    if found:
        assert found.span_s >= 0
        assert "<html" in Timeline(found, found).page()
        str(trace_summary.table(found)).encode()
        trace_summary.overlap(found)


# Notebooks

SOURCE = ["### BEGIN SOLUTION\n", "x = 1\n", "### END SOLUTION\n"]
CELL = {"cell_type": "code", "id": "a", "metadata": {}, "source": SOURCE, "outputs": [], "execution_count": None}
ABOUT = {"dltutorial": {"version": "0"}, "kernelspec": {"name": "python3"}}
NOTEBOOK = {"cells": [CELL, CELL | {"cell_type": "markdown", "source": "# Title"}], "metadata": ABOUT,
            "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
NOTEBOOKS = as_json(changed(NOTEBOOK)) | json_bytes() | damaged(json.dumps(NOTEBOOK).encode())


def course(place, solution, exercise=None):
    shutil.rmtree(place / "course", ignore_errors=True)
    for folder, content in (("solutions", solution), ("exercises", exercise)):
        (place / "course" / folder).mkdir(parents=True)
        if content is not None:
            (place / "course" / folder / "00_a.ipynb").write_bytes(content)
    return place / "course"


@examples(250)
@given(NOTEBOOKS)
def test_a_learners_exercise_of_any_bytes_is_kept(place, content):
    root = course(place, json.dumps(NOTEBOOK).encode(), content)
    assert "00_a" in str(exercise_status.status(root))
    assert exercises.build(root, check=True) in (0, 1)
    pristine = exercises.look(root / "exercises" / "00_a.ipynb").is_pristine
    for force in (False, True):
        assert exercises.build(root, force=force) == 0
        kept = [file.read_bytes() for file in (root / "exercises").rglob("*") if file.is_file()]
        assert pristine or content in kept


@examples(250)
@given(NOTEBOOKS)
def test_a_solution_of_any_bytes_becomes_an_exercise_or_one_line(place, content):
    root = course(place, content)
    file = root / "solutions" / "00_a.ipynb"
    if or_line(exercises.build, root, True) is not None:
        assert exercises.build(root) == 0
        assert exercises.build(root, check=True) == 0
        assert "as it came" in str(exercise_status.status(root))
    else:
        assert not list((root / "exercises").iterdir())
    or_line(notebooks.about, file)
    found = or_line(notebooks.read, file)
    if found:
        or_line(notebooks.title, found)


# What is left of a pocket cluster

CLUSTER = {"cluster.json": b'{"nodes": ["n0", "n1"]}', "slurm.conf": b"ClusterName=c\nNodeName=n0,n1 CPUs=2\n"}
LEFT = {name: damaged(content) | json_bytes() | st.just(content) for name, content in CLUSTER.items()}
LEFT["cluster.json"] |= as_json(changed({"nodes": ["n0", "n1"]}))


@examples(150)
@given(st.fixed_dictionaries({}, optional=LEFT))
def test_a_cluster_of_any_files_is_one_with_nodes_or_none(forking, place, files):
    folder = place / "dltutorial" / "pocket" / daemons.host() / "left"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found = forking("cluster_of", "left", env={"XDG_CACHE_HOME": str(place)}).value_or_line()
    if found:
        assert found[0] == "left"
        assert found[1] or "its slurm.conf cannot be read" in found[2][0]
        assert all(isinstance(node, str) for node in found[1])
