"""What files and options may hold: any value, any JSON, good bytes with some of them changed."""

import copy
import json

from hypothesis import settings
from hypothesis import strategies as st

EXTREMES = [0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**21, 10**400, 1e308, 5e-324, -0.0]
NUMBERS = st.integers(-9, 99) | st.floats() | st.sampled_from(EXTREMES)
ODD = ["", "nan", "\n", "a\nb", "\x00", "../x", "\ud800", "ß✓"]
TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(ODD)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXT
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)
BYTES = st.binary(max_size=60)


def examples(n):
    """So many of the profile ``course``, and in proportion of others."""
    return settings(max_examples=max(1, n * settings().max_examples // 100))


def places(value, path=()):
    """The paths of all that a JSON value holds, itself included."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


@st.composite
def changed(draw, good, values=JSON, most=3):
    """A good JSON value, some parts of it taken away, replaced or added to."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, most))):
        *way, last = ("",), *draw(st.sampled_from([path for path in places(value) if path] or [("",)]))
        holder = value
        for key in way[1:]:
            holder = holder[key]
        if not isinstance(holder, dict | list) or last == "":
            return draw(values)
        if draw(st.integers(0, 3)) == 0:
            del holder[last]
        else:
            holder[last] = draw(values)
        if isinstance(holder, dict) and draw(st.integers(0, 5)) == 0:
            holder[draw(TEXT)] = draw(values)
    return value


class Content(bytes):
    """Bytes that take little room in what a failing test says."""

    def __repr__(self):
        return super().__repr__() if len(self) < 2000 else f"{bytes(self[:40])} … {len(self):,} bytes"


class Quiet(dict):
    """Good files by name, which need not be told."""

    def __repr__(self):
        return f"{len(self)} good files"


def json_bytes(values=JSON):
    """A file that should hold JSON: it does; or too deep, or too long a number, or other bytes."""
    odd = [b"", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{}{}", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000]
    return (as_json(values) | st.sampled_from(odd) | BYTES).map(Content)


def as_json(values):
    """Files that hold these values."""
    return values.map(lambda value: json.dumps(value).encode())


@st.composite
def damaged(draw, good):
    """Good bytes, cut, grown, or with some of them changed."""
    how = draw(st.sampled_from(["cut", "flipped", "flipped", "flipped", "grown", "other"]))
    if how == "cut":
        return good[: draw(st.integers(0, max(0, len(good) - 1)))]
    if how == "flipped" and good:
        content = bytearray(good)
        for _ in range(draw(st.integers(1, 4))):
            content[draw(st.integers(0, len(good) - 1))] = draw(st.sampled_from([0, 255]) | st.integers(0, 255))
        return bytes(content)
    if how == "grown":
        at = draw(st.integers(0, len(good)))
        return good[:at] + draw(BYTES) + good[at:]
    return draw(BYTES)
