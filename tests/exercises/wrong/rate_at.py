"""Wrong answers to the exercise of chapter 12, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def rate_at(step, run):
    batch = run.ranks * run.batch_per_rank
    peak = run.base_rate * batch / run.base_batch
    per_epoch = run.samples // batch
    warmup, steps = run.warmup_epochs * per_epoch, run.epochs * per_epoch
    if step < warmup:
        return run.base_rate + (peak - run.base_rate) * (step + 1) / warmup
    part = min(1.0, (step - warmup) / (steps - warmup))
    return 0.5 * peak * (1 + math.cos(math.pi * part))
"""
_PEAK = "run.base_rate * batch / run.base_batch"
_RISE = "run.base_rate + (peak - run.base_rate) * (step + 1) / warmup"
_PART = "min(1.0, (step - warmup) / (steps - warmup))"


def _with(*changes: str) -> str:
    source = RIGHT
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in source
        source = source.replace(old, new)
    return source


WRONG = [
    ("never below the base rate", _with(_PEAK, f"max(run.base_rate, {_PEAK})"), "without max"),
    ("a warm-up never below the base rate", _with(_RISE, f"max(run.base_rate, {_RISE})"), "without max"),
    ("epochs of a padding sampler",
     _with("run.samples // batch", "math.ceil(run.samples / run.ranks) // run.batch_per_rank"), "repeats samples"),
    ("scaled per rank twice", _with(_PEAK, f"run.ranks * {_PEAK}"), "Scaled twice"),
    ("the batch of one rank", _with(_PEAK, "run.base_rate * run.batch_per_rank / run.base_batch"), "the global one"),
    ("not scaled", _with(_PEAK, "run.base_rate"), "k times the base rate"),
    ("times the ranks", _with(_PEAK, "run.base_rate * run.ranks"), "not the ratio of the batches"),
    ("square root", _with(_PEAK, "run.base_rate * math.sqrt(batch / run.base_batch)"), "square-root"),
    ("whole-number division", _with(_PEAK, "run.base_rate * (batch // run.base_batch)"), "Use /"),
    ("warm-up in epochs", _with("run.warmup_epochs * per_epoch", "run.warmup_epochs"), "counts epochs"),
    ("epochs of one rank", _with("run.samples // batch", "run.samples // run.batch_per_rank"), "all ranks share"),
    ("a batch that is not full", _with("run.samples // batch", "math.ceil(run.samples / batch)"), "round the number"),
    ("parts of a batch", _with("run.samples // batch", "run.samples / batch"), "a whole number of updates"),
    ("rounded to the nearest", _with("run.samples // batch", "round(run.samples / batch)"), "round the number"),
    ("an update late", _with("(step + 1)", "step"), "One update late"),
    ("from 0", _with(_RISE, "peak * (step + 1) / warmup"), "not from 0"),
    ("from 0, the first wasted", _with(_RISE, "peak * step / warmup"), "wastes the first update"),
    ("stairs of epochs", _with("(step + 1) / warmup", "(step // per_epoch) / run.warmup_epochs"), "not once an epoch"),
    ("no warm-up", _with("if step < warmup", "if False", _PART, "step / steps"), "There is no warm-up"),
    ("cosine over the whole run", _with(_PART, "min(1.0, step / steps)"), "starts after the warm-up"),
    ("length of the whole run", _with("(steps - warmup)", "steps"), "divide by steps - warm-up"),
    ("cosine an update early", _with("(step - warmup)", "(step - warmup + 1)"), "still at the peak"),
    ("no clamp", _with(_PART, "(step - warmup) / (steps - warmup)"), "Past the last update"),
    ("a whole cosine", _with("math.pi * part", "2 * math.pi * part"), "half of one"),
    ("a quarter", _with("math.pi * part", "math.pi / 2 * part"), "from 0 to π"),
    ("0 at the last update", _with("(steps - warmup)", "(steps - warmup - 1)"), "not at the last one"),
    ("a straight line", _with("0.5 * peak * (1 + math.cos(math.pi * part))", "peak * (1 - part)"), "half a cosine"),
    ("degrees", _with("math.pi * part", "180 * part"), None),
    ("ends at the base rate", _with("0.5 * peak *", "run.base_rate + 0.5 * (peak - run.base_rate) *"),
     "not at the base rate"),
    ("a factor, not a rate", _with("peak = run.base_rate * batch", "peak = batch"), None),
    ("divides by an empty warm-up", _with("if step < warmup:\n", "rise = 1 / warmup\n    if step < warmup:\n"), None),
]  # fmt: skip
