"""Wrong answers to the second part of chapter 23's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
def blind_direction(c_x_N, c_xx_N, tolerance=1e-3):
    columns_N2 = torch.stack([c_x_N, -c_xx_N], 1)
    lengths_2 = columns_N2.norm(dim=0)
    if (lengths_2 == 0).any():
        return (lengths_2 == 0).to(columns_N2)
    _, sizes, directions = torch.linalg.svd(columns_N2 / lengths_2, full_matrices=False)
    if sizes[1] > tolerance * sizes[0]:
        return None
    blind = directions[1] / lengths_2
    blind = blind / blind.norm()
    return -blind if blind[0] < 0 else blind
"""
_with = functools.partial(altered, RIGHT)
_LAST = "return -blind if blind[0] < 0 else blind"
_CENTRED = ("], 1)\n", "], 1)\n    columns_N2 = columns_N2 - columns_N2.mean(0)\n")
_WHERE = (
    "return (lengths_2 == 0).to(columns_N2)",
    "return torch.tensor([1.0, 0.0] if lengths_2[0] == 0 else [0.0, 1.0])",
)

RIGHT_TOO = [
    ("a tuple", _with((_LAST, f"{_LAST.replace('return ', 'return tuple((')}).tolist())"))),
    ("a list", _with((_LAST, f"{_LAST.replace('return ', 'return list(')})"))),
    ("float32", _with((_LAST, f"{_LAST.replace('return ', 'return (')}).float()"))),
]

WRONG = [
    ("always none", "def blind_direction(c_x_N, c_xx_N, tolerance=1e-3):\n    return None\n", "is not None"),
    ("never none", _with(("        return None", "        pass")), "not parallel. No change"),
    ("plus", _with(("-c_xx_N", "c_xx_N")), "with a minus sign"),
    ("told best", _with(("directions[1]", "directions[0]")), "smallest singular value"),
    ("not scaled", _with((" / lengths_2, full", ", full"), ("directions[1] / lengths_2", "directions[1]")), "length 1"),
    ("not scaled back", _with(("directions[1] / lengths_2", "directions[1]")),
     "Divide the direction by the same lengths"),
    ("any sign", _with(("return -blind if blind[0] < 0 else blind", "return blind if blind[0] < 0 else -blind")),
     "must be positive"),
    ("not of length 1", _with(("    blind = blind / blind.norm()\n", "    blind = 3 * blind\n")), "must have length 1"),
    ("b first", _with(("[c_x_N, -c_xx_N]", "[-c_xx_N, c_x_N]")), "first a, then b"),
    ("zeros divided", _with(("    if (lengths_2 == 0).any():\n        return (lengths_2 == 0).to(columns_N2)\n", "")),
     "Avoid the division"),
    ("zero cases swapped", _with(("return (lengths_2 == 0)", "return (lengths_2 != 0)")), "b can have any value"),
    ("columns centred", _with(_CENTRED, _WHERE), "Do not subtract a mean"),
    ("columns centred, and both are 0", _with(_CENTRED), "Do not subtract a mean"),
    ("the second zero case swapped", _with((_WHERE[0], "return torch.tensor([0.0, 1.0])")), "a can have any value"),
    ("exact", _with(("tolerance * sizes[0]", "1e-12 * sizes[0]")), "Noise"),
    ("too blunt", _with(("tolerance * sizes[0]", "0.3 * sizes[0]")), "detect this direction"),
    ("tolerance is not used", _with(("> tolerance *", "> 1e-3 *")), "the given tolerance"),
    ("ten times the tolerance", _with(("> tolerance *", "> 10 * tolerance *")), "detect this direction"),
    ("absolute", _with(("> tolerance * sizes[0]", "> tolerance")), "Noise"),
    ("squared", _with(("sizes[1] > tolerance * sizes[0]", "sizes[1] ** 2 > tolerance * sizes[0] ** 2")), None),
    ("of the sum", _with(("tolerance * sizes[0]", "tolerance * sizes.sum()")), "without sum"),
    ("of one largest entry", _with(("columns_N2.norm(dim=0)", "columns_N2.abs().amax(0)")), None),
]  # fmt: skip
