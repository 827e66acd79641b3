"""Wrong arguments of ``launch`` and ``process_group`` are one clear line, before any process starts."""

import threading

import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import launch, process_group
from dltutorial.ranks import RankInfo

LOCK = threading.Lock()

# What it is, the call, words of its line.
ROWS = [
    ("no rank", lambda: launch(print, 0), "world_size=0: .*at least 1"),
    ("a function with a lock", lambda: launch(lambda: LOCK, 2), "takes or refers to something that cannot be sent"),
    ("an unknown backend", lambda: launch(print, 2, backend="gloo2"), "backend='gloo2': choose gloo, or auto"),
    (
        "nowhere to meet",
        lambda: process_group.rendezvous(RankInfo(0, 0, 2, 2, "torchrun")),
        "do not say where the 2 ranks meet",
    ),
]


@pytest.mark.filterwarnings("ignore:.*ranks share")
@pytest.mark.parametrize(("call", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_cannot_be_is_one_line(call, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CourseError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
