"""Wrong answers to the exercise of chapter 13, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def noise_scale(gradients_SRN, batch_size):
    b, B = batch_size, batch_size * gradients_SRN.shape[1]
    small_S = gradients_SRN.square().sum(2).mean(1)
    large_S = gradients_SRN.mean(1).square().sum(1)
    squared_S = (B * large_S - b * small_S) / (B - b)
    trace_S = (small_S - large_S) / (1 / b - 1 / B)
    squared, trace = squared_S.mean(), trace_S.mean()
    scale = trace / squared if squared > 0 else float("nan")
    return float(squared), float(trace), float(scale)
"""


_with = functools.partial(altered, RIGHT)


WRONG = [
    ("|G|² of the averaged gradient", _with(("squared_S.mean()", "large_S.mean()")), "still holds noise"),
    ("|G|² of the ranks' gradients", _with(("squared_S.mean()", "small_S.mean()")), "of a small batch"),
    ("mean of ratios", _with(("scale = trace / squared if", "scale = (trace_S / squared_S).mean() if")), "ratio last"),
    ("batch sizes swapped", _with(("b, B = batch_size, batch_size *", "B, b = batch_size, batch_size *")), "swapped"),
    ("variance of a rank's mean",
     _with(("trace_S = (small_S - large_S) / (1 / b - 1 / B)", "trace_S = (small_S - large_S) / (1 - b / B)")),
     "that of one sample"),
    ("variance of the average over all",
     _with(("trace_S = (small_S - large_S) / (1 / b - 1 / B)", "trace_S = (small_S - large_S) / (B / b - 1)")),
     "all ranks' samples"),
    ("variance divided by R",
     _with(("trace_S = (small_S - large_S) / (1 / b - 1 / B)", "trace_S = (small_S - large_S) * b")),
     "Divide by R − 1"),
    ("summed, not averaged", _with(("gradients_SRN.mean(1)", "gradients_SRN.sum(1)")), "not their sum"),
    ("only rank 0", _with((".sum(2).mean(1)", ".sum(2)[:, 0]")), "all ranks"),
    ("each step clipped at zero", _with(("squared_S.mean()", "squared_S.clamp(min=0).mean()")), "Keep the sign"),
    ("the mean clipped at zero",
     _with(("squared, trace = squared_S.mean()", "squared, trace = squared_S.mean().clamp(min=0)")), "Keep the sign"),
    ("a scale where none can be told", _with((' if squared > 0 else float("nan")', "")), "Say so with NaN"),
    ("upside down", _with(("trace / squared if", "squared / trace if")), "Upside down"),
    ("a root", _with(("trace / squared if", "(trace / squared) ** 0.5 if")), "no root"),
    ("the scale alone", _with(("return float(squared), float(trace), float(scale)", "return scale")), "all three"),
    ("constants of two ranks", _with(("batch_size * gradients_SRN.shape[1]", "batch_size * 2")), None),
]  # fmt: skip
