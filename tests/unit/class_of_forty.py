"""Forty learners who join a class, guess, and answer real checks rightly and wrongly, each under their own setting."""

import contextlib
import io
import runpy
from pathlib import Path

from dltutorial.course import check, classroom
from dltutorial.record import records

WRONG_ANSWERS = Path(__file__).parents[1] / "exercises" / "wrong"


def layer_time(batch, n_in, n_out, value_bytes, flop_per_s, bytes_per_s, flop=2):
    n_bytes = value_bytes * (batch * n_in + n_in * n_out + batch * n_out)
    return max(flop * batch * n_in * n_out / flop_per_s, n_bytes / bytes_per_s)


def one_flop(*layer):
    return layer_time(*layer, flop=1)


def right_order():
    """The right answer to the exercise of chapter 07, as the tests of its check have it."""
    names = {}
    exec(runpy.run_path(str(WRONG_ANSWERS / "ladder_order.py"))["RIGHT"], names)
    return names["ladder_order"]


def forty(folder, place, monkeypatch):
    """12 are stuck at the first exercise, 20 pass it; of these 14 pass the next, and 6 try."""
    monkeypatch.delenv("DLTUTORIAL_CLASS", raising=False)
    for n in range(40):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(place / f"config-{n}"))
        classroom.join(folder)
        measured = 100.0 + n
        records.Writer("00", "smoke").write(
            "matmul", measured, "GFLOP/s", kind="prediction", measured=measured, guess=2.0 * n + 1, touched=n < 30
        )
        with contextlib.redirect_stdout(io.StringIO()):
            for _ in range(3 if n < 12 else 1 if n < 20 else 0):
                check.layer_time_s(one_flop)
            if 12 <= n < 32:
                check.layer_time_s(layer_time)
                check.ladder_order(right_order() if n < 26 else lambda parts_s, knobs: list(knobs))
