"""Checkpoints of any bytes: the newest complete one is found, and files that are not complete are passed over."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dltutorial.engine import checkpoint
from dltutorial.engine.loop import TrainState
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task

RECIPE = Recipe(optimizer="adamw", steps=9, warmup_steps=1, device="cpu")


def squared_error(model, x, y):
    return (model(x) - y).square().mean()


@pytest.fixture(scope="module")
def complete(place):
    """The contents of two checkpoints, after 3 and 6 updates, by the names of their files."""
    torch.manual_seed(0)
    state = TrainState(Task(nn.Linear(2, 1), None, squared_error), RECIPE)
    files = []
    for step in (3, 6):
        state.losses.append(state.update(torch.ones(3, 2), torch.ones(3, 1)))
        state.step = step
        files.append(checkpoint.save(checkpoint.take(state, RECIPE, "data"), place / "complete"))
    return {file.name: file.read_bytes() for file in files}


@st.composite
def damaged(draw, content):
    """The content, cut or with some bytes changed."""
    if draw(st.booleans()):
        return content[: draw(st.integers(0, len(content) - 1))]
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        changed[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


def newest_step(folder, files):
    """The step of the newest checkpoint among these files, None if there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    newest = checkpoint.newest(folder)
    return newest and newest.step


@given(st.data())
def test_a_damaged_file_is_passed_over(place, complete, data):
    (older, old), (newer, new) = complete.items()
    broken = data.draw(damaged(new))
    assert newest_step(place / "damaged", {older: old, newer: broken}) == (6 if broken == new else 3)
    assert newest_step(place / "damaged", {newer: broken}) == (6 if broken == new else None)


OTHER_NAMES = ["step-1.pt", ".step.partial", "x", "step-00000009-0123456789abcdef.pt", "step-99999999-0.pt"]


@given(st.dictionaries(st.sampled_from(OTHER_NAMES), st.binary(max_size=60)))
def test_other_files_are_passed_over(place, complete, others):
    assert newest_step(place / "others", complete | others) == 6
