"""A class's folder as it looks in the afternoon: made-up learners along the chapters of one day."""

import datetime
import json
import math
import random

DAY = {"00": 30, "01": 45, "02": 45, "03": 45, "07": 45, "08": 45, "09": 45, "11": 45}  # chapter → minutes
SPEEDS = {
    "ladder_gain": ("07", 2.75, "×"),
    "loader: a thread reads ahead": ("03", 7.8e3, "samples/s"),
    "peak matmul fp32": ("00", 1.03e11, "FLOP/s"),
    "peak memory copy": ("00", 2.4e10, "bytes/s"),
    "samples_per_s": ("01", 75.0, "samples/s"),
}


def fill(folder, n, seed=0, since_start_min=330.0):
    """Files of n learners, each with a pace of their own."""
    chance = random.Random(seed)
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=since_start_min)
    for number in range(n):
        pace, at_min, lines = math.exp(chance.gauss(0, 0.15)), 15.0, []
        end_min = since_start_min * (chance.uniform(0.6, 0.95) if chance.random() < 0.08 else 1.0)
        for chapter, minutes in DAY.items():
            for part, record in sorted(work(chapter, chance, pace), key=lambda pair: pair[0]):
                when = at_min + part * pace * minutes * 1.1
                if when <= end_min:
                    time = (start + datetime.timedelta(minutes=when)).isoformat()[:19] + "Z"
                    lines.append(json.dumps({"time": time, "chapter": chapter, **record}))
            at_min += pace * minutes * 1.1
        (folder / f"calm-otter-{100 + number}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def work(chapter, chance, pace):
    """(part of the chapter's time, record) of one learner in one chapter."""
    for number in range(10):
        yield (number + 1) / 12, {"kind": "claim", "what": "a claim", "status": "shown"}
    for number, name in enumerate(("matmul", "gain", "step")):
        truth = 10 ** (number * 1.3)
        yield 0.3 + 0.2 * number, {
            "kind": "prediction", "what": name, "unit": "×", "guess": truth * math.exp(chance.gauss(-0.7, 1.0)),
            "touched": chance.random() < 0.8, "measured": truth * math.exp(chance.gauss(0, 0.1)),
        }  # fmt: skip
    for what, (where, value, unit) in SPEEDS.items():
        if where == chapter:
            measured = value * math.exp(chance.gauss(0, 0.25))
            yield 0.8, {"kind": "measurement", "what": what, "value": measured, "unit": unit, "preset": "smoke"}
    tries = min(7, int(pace * chance.expovariate(0.35)))
    check = {"kind": "check", "what": f"exercise_{chapter}"}
    text = "a made-up misconception, as long as the hint of a check usually is, no more and no less"
    for number in range(tries):
        hint = f"Number {min(2, 1 + int(chance.expovariate(0.5)))}: {text}."
        yield 0.5 + 0.07 * number, {**check, "status": "wrong", "failed": "a case", "hint": hint}
    yield 0.5 + 0.07 * tries, {**check, "status": "passed", "failed": "", "hint": ""}
