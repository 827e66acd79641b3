"""Wrong answers to the exercise of chapter 00, each a misconception: (label, source, part of the hint expected)."""

HEAD = "def layer_time_s(batch, n_in, n_out, bytes_per_value, flop_per_s, bytes_per_s):\n"
COUNT = "    flop = 2 * batch * n_in * n_out\n    values = batch * n_in + n_in * n_out + batch * n_out\n"
END = "    return max(flop / flop_per_s, values * bytes_per_value / bytes_per_s)\n"


def _with(old: str, new: str) -> str:
    source = HEAD + COUNT + END
    assert old in source
    return source.replace(old, new)


WRONG = [
    ("a multiply-add counted as one FLOP", _with("2 * batch", "batch"), "2 FLOP, not 1"),
    ("sum instead of max", _with("max(flop / flop_per_s, values", "(flop / flop_per_s + values"), "not the sum"),
    ("min instead of max", _with("max(", "min("), "quicker of two"),
    ("weights forgotten", _with(" + n_in * n_out", ""), "weights have to come"),
    ("only the weights", _with("batch * n_in + n_in * n_out + batch * n_out", "n_in * n_out"), "Inputs and outputs"),
    ("outputs forgotten", _with(" + batch * n_out\n", "\n"), "outputs have to be written"),
    ("inputs forgotten", _with("values = batch * n_in + ", "values = "), "inputs have to be read"),
    ("weights read for every sample", _with("+ n_in * n_out", "+ batch * n_in * n_out"), "shares one reading"),
    ("values instead of bytes", _with(" * bytes_per_value", ""), "Memory moves bytes"),
    ("always four bytes", _with("* bytes_per_value", "* 4"), "not always 4"),
    ("bits instead of bytes", _with("* bytes_per_value", "* 8 * bytes_per_value"), "not in bits"),
    ("arithmetic alone", _with("max(flop / flop_per_s, values * bytes_per_value / bytes_per_s)", "flop / flop_per_s"),
     "quicker of two"),
    ("memory alone",
     _with("max(flop / flop_per_s, values * bytes_per_value / bytes_per_s)", "values * bytes_per_value / bytes_per_s"),
     "quicker of two"),
    ("milliseconds", _with("return max(", "return 1e3 * max("), "seconds"),
    ("nothing returned", _with("return max(", "max("), "return missing"),
    ("one peak for both", _with("flop / flop_per_s", "flop / bytes_per_s"), None),
    ("the peaks swapped",
     _with("flop_per_s, values * bytes_per_value / bytes", "bytes_per_s, values * bytes_per_value / flop"), "swapped"),
    ("the batch left out of the FLOP", _with("2 * batch", "2"), "Every sample"),
    ("rates divided by amounts",
     _with("flop / flop_per_s, values * bytes_per_value / bytes_per_s",
           "flop_per_s / flop, bytes_per_s / (values * bytes_per_value)"), "one over a time"),
]  # fmt: skip
