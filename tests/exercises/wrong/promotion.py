"""Wrong answers to chapter 20's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
class Promotion:
    def __init__(self, configs, n_levels, eta):
        self.configs, self.eta = iter(configs), eta
        self.errors = [{} for _ in range(n_levels)]  # of who has arrived, by level
        self.promoted = [set() for _ in range(n_levels)]
        self.again = []  # to begin once more

    def ask(self):
        for level in reversed(range(len(self.errors) - 1)):
            arrived = sorted(self.errors[level], key=self.errors[level].get)
            for config in arrived[: len(arrived) // self.eta]:
                if config not in self.promoted[level] and math.isfinite(self.errors[level][config]):
                    self.promoted[level].add(config)
                    return config, level + 1
        config = self.again.pop(0) if self.again else next(self.configs, None)
        return None if config is None else (config, 0)

    def tell(self, config, level, error):
        self.errors[level][config] = error if math.isfinite(error) else math.inf

    def lost(self, config, level):
        if level:
            self.promoted[level - 1].discard(config)
        else:
            self.again.append(config)
"""
_with = functools.partial(altered, RIGHT)

WRONG = [
    ("promotes twice", _with(("config not in self.promoted[level] and ", "")), None),
    ("rounds up", _with(("len(arrived) // self.eta]", "-(-len(arrived) // self.eta)]")), "rounded down"),
    ("the lowest level first", _with(("in reversed(range(len(self.errors) - 1)):", "in range(len(self.errors) - 1):")),
     "the higher one first"),
    ("waits for all", _with(("for config in arrived[:",
     "for config in [] if self.waits() else arrived[:"),
     ("    def tell(", "    def waits(self):\n        return self.begun > sum(map(len, self.errors))\n\n    def tell("),
     ("        self.again = []", "        self.begun, self.again = 0, []"),
     ("            return config, level + 1",
      "            self.begun += 1\n                    return config, level + 1"),
     ("        return None if config is None",
      "        self.begun += config is not None\n        return None if config is None")),
     None),
    ("compares levels of different budget", _with(("arrived = sorted(self.errors[level], key=self.errors[level].get)",
     "every = [e for errors in self.errors for e in errors.values()]\n            arrived = [c for c in "
     "sorted(self.errors[level], key=self.errors[level].get) if self.errors[level][c] <= "
     "sorted(every)[len(every) // 2]]")),
     None),
    ("the largest errors", _with(("key=self.errors[level].get)", "key=self.errors[level].get, reverse=True)")), None),
    ("forgets a dead trial", _with(("        if level:\n"
     "            self.promoted[level - 1].discard(config)\n        else:\n"
     "            self.again.append(config)", "        pass")), "Its worker died"),
    ("begins a lost one from the start", _with(("            self.promoted[level - 1].discard(config)\n",
     "            self.again.append(config)\n")), "promotion does not count"),
    ("forgets what it had reached", _with(("            self.promoted[level - 1].discard(config)\n",
     "            self.promoted[level - 1].discard(config)\n            del self.errors[level - 1][config]\n")), None),
    ("a dead one has arrived", _with(("            self.promoted[level - 1].discard(config)\n",
     "            self.errors[level][config] = math.inf\n")), "promotion does not count"),
    ("NaN as it comes", _with(("error if math.isfinite(error) else math.inf", "error"),
     (" and math.isfinite(self.errors[level][config])", "")), "diverged"),
    ("a diverged one goes on", _with((" and math.isfinite(self.errors[level][config])", "")), "diverged"),
    ("a diverged one has not arrived",
     _with(("        self.errors[level][config] = error if math.isfinite(error) else math.inf",
     "        if math.isfinite(error):\n            self.errors[level][config] = error")), None),
    ("new ones first", _with(("self.again.pop(0) if self.again else next(self.configs, None)",
     "next(self.configs, None)\n        config = self.again.pop(0) if config is None and self.again else config")),
     "once more"),
    ("the newest lost first", _with(("self.again.pop(0)", "self.again.pop()")), "lost first begins first"),
    ("the lost in the order of their numbers", _with(("config = self.again.pop(0)",
     "self.again.sort()\n        config = self.again.pop(0)")), "lost first begins first"),
    ("of equal ones the last that arrived", _with(("sorted(self.errors[level], key=",
     "sorted(reversed(self.errors[level]), key=")), "the first that arrived"),
    ("of equal ones the lowest number", _with(("sorted(self.errors[level], key=",
     "sorted(sorted(self.errors[level]), key=")), "the first that arrived"),
    ("lost ones before promotions", _with(("    def ask(self):\n",
     "    def ask(self):\n        if self.again:\n            return self.again.pop(0), 0\n")), "before what was lost"),
    ("a death at the last level undoes the first promotion",
     _with(("self.promoted[level - 1].discard(config)", "self.promoted[0].discard(config)")), "play it on paper"),
    ("an error in ask", _with(("key=self.errors[level].get)", "key=errs.get)")), "the next config begins"),
    ("always thirds", _with(("len(arrived) // self.eta]", "len(arrived) // 3]")), "are given to __init__"),
    ("always three levels", _with(("range(len(self.errors) - 1)", "range(2)")), "continues from the last level"),
    ("from the last level, too", _with(("range(len(self.errors) - 1)", "range(len(self.errors))")), None),
    ("-inf goes on", _with(("error if math.isfinite(error) else math.inf", "math.inf if math.isnan(error) else error"),
     ("math.isfinite(self.errors[level][config])", "self.errors[level][config] < math.inf")), "diverged"),
    ("a limit lets all equal ones through", _with((
     "            for config in arrived[: len(arrived) // self.eta]:\n                if config not in",
     "            k = len(arrived) // self.eta\n            for config in arrived if k else ():\n                "
     "if self.errors[level][config] <= self.errors[level][arrived[k - 1]] and config not in")), "equal errors"),
    ("a quota of all who were promoted", _with((
     "            for config in arrived[: len(arrived) // self.eta]:",
     "            quota = len(arrived) // self.eta - len(self.promoted[level])\n"
     "            for config in arrived if quota > 0 else ():")), "may have left it"),
    ("a queue of who was among the best once", _with((
     "            for config in arrived[: len(arrived) // self.eta]:",
     "            for config in self.queue[level] if arrived else ():"),
     ("        self.again = []", "        self.queue = [[] for _ in range(n_levels)]\n        self.again = []"),
     ("    def lost(", "        best = sorted(self.errors[level], key=self.errors[level].get)\n"
      "        self.queue[level] += best[: len(best) // self.eta]\n\n    def lost(")), "may have left it"),
    ("an error of its own at the end", _with(("next(self.configs, None)", "next(self.configs)")), "None"),
    ("a job only", _with(("return None if config is None else (config, 0)", "return config")), None),
]  # fmt: skip
