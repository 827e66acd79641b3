"""Checkpoints of any bytes: the newest whole one is found, or one line says why not; nothing is deleted."""

import hashlib
import io

import pytest
import torch
from hostile import BYTES, JSON, NUMBERS, PLAIN, Quiet, damaged, examples
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def whole(forking, place):
    """The bytes of two checkpoints, by their names."""
    for step in (3, 6):
        forking("save_checkpoint", str(place / "whole"), step).value_or_line()
    return Quiet({file.name: file.read_bytes() for file in sorted((place / "whole").iterdir())})


def look(forking, folder, files):
    """What comes of a folder with these files; none of them has changed."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found = forking("newest_checkpoint", str(folder)).value_or_line()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files
    return found


def named(step, content):
    """The name that these bytes have as a checkpoint."""
    return f"step-{step:08d}-{hashlib.blake2b(content, digest_size=8).hexdigest()}.pt"


@examples(80)
@given(st.data())
def test_of_damaged_files_the_newest_whole_one_is_taken(forking, place, whole, data):
    (older, old), (newer, new) = whole.items()
    broken = data.draw(damaged(new))
    expected = 6 if broken == new else 3
    assert look(forking, place / "damaged", {older: old, newer: broken}) == expected
    assert look(forking, place / "alone", {newer: broken}) == (6 if broken == new else None)


OTHERS = ["step-1.pt", ".step.partial", "x", "step-00000009-0123456789abcdef.pt", "step-99999999-0.pt"]


@examples(30)
@given(st.dictionaries(st.sampled_from(OTHERS), BYTES))
def test_other_files_are_passed_over(forking, place, whole, others):
    assert look(forking, place / "others", whole | others) == 6


@examples(80)
@given(st.data())
def test_a_foreign_file_with_its_right_name_is_one_line(forking, place, whole, data):
    """Its digest is right: whoever wrote it meant it."""
    content = data.draw(damaged(list(whole.values())[-1]))
    look(forking, place / "foreign", whole | {named(9, content): content})


TENSORS = st.sampled_from([torch.empty(0), torch.ones(3), torch.ones(2, 2).int(), torch.zeros(5056, dtype=torch.uint8)])
VALUES = st.recursive(
    PLAIN | TENSORS | NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3)
)


def parts(value, way=()):
    """The ways to all that a checkpoint holds."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in inner:
        yield (*way, key)
        yield from parts(part, (*way, key))


def put(value, way, part, gone):
    """A copy with another part there, or none."""
    if not way:
        return part
    items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    if gone and len(way) == 1:
        del items[way[0]]
    else:
        items[way[0]] = put(items[way[0]], way[1:], part, gone)
    return items if isinstance(value, dict) else type(value)(items.values())


@examples(120)
@given(st.data())
def test_a_checkpoint_with_wrong_fields_is_one_line(forking, place, whole, data):
    found = torch.load(io.BytesIO(list(whole.values())[-1]), weights_only=True)
    places = [way for way in parts(found) if len(way) < 4]
    for way in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True)):
        if any(way == known for known in parts(found)):
            found = put(found, way, data.draw(VALUES), gone=data.draw(st.booleans()))
    if data.draw(st.integers(0, 5)) == 0:
        found["more"] = data.draw(JSON)
    raw = io.BytesIO()
    torch.save(found, raw)
    look(forking, place / "wrong", whole | {named(9, raw.getvalue()): raw.getvalue()})
