"""What a step costs in parts, and what each knob makes of them: the prediction of the ladder.

In: the seconds of each part of a step, and the factor by which a knob changes each. Out: the seconds of the step with
any knobs taken, and the order in which to take them. A part that is p of the whole and becomes k times as quick makes
the whole 1 / (1 − p + p/k) times as quick: Amdahl 1967 (doi.org/10.1145/1465482.1465560).

    parts:   load · launch · products · attention · optimizer · rest
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LOAD, LAUNCH, PRODUCTS, ATTENTION, OPTIMIZER, REST = "load", "launch", "products", "attention", "optimizer", "rest"


@dataclass(frozen=True)
class Step:
    """One training step in parts.

    Attributes:
        seconds: part → seconds. ``load`` and ``launch`` are the host's, all others the device's.
        on_device: the host has a device to wait for; otherwise one processor does everything, one after another.
        waits: the host reads the loss after every step, so that it loads nothing while the device computes.
        ahead: a thread loads the next batch while this one is used.
    """

    seconds: Mapping[str, float]
    on_device: bool = False
    waits: bool = False
    ahead: bool = False

    @property
    def whole_s(self) -> float:
        """Seconds from one step to the next."""
        load_s, launch_s = self.seconds.get(LOAD, 0.0), self.seconds.get(LAUNCH, 0.0)
        compute_s = sum(seconds for part, seconds in self.seconds.items() if part not in (LOAD, LAUNCH))
        if not self.on_device:
            return load_s + launch_s + compute_s
        if self.ahead:
            return max(load_s, launch_s, compute_s)
        if self.waits:
            return load_s + max(launch_s, compute_s)
        return max(load_s + launch_s, compute_s)

    def taking(self, effects: Iterable["Effect"]) -> "Step":
        """The same step with some knobs turned."""
        seconds, flags = dict(self.seconds), {}
        for effect in effects:
            for part, factor in effect.factors.items():
                seconds[part] = seconds.get(part, 0.0) * factor
            flags |= effect.flags
        return dataclasses.replace(self, seconds=seconds, **flags)

    def share(self, part: str) -> float:
        """A part's seconds over the whole step's."""
        return self.seconds.get(part, 0.0) / self.whole_s


@dataclass(frozen=True)
class Effect:
    """What one knob does.

    Attributes:
        name: of the rung.
        factors: part → seconds after, over seconds before.
        why: where the factors come from, in a few words.
        flags: of ``Step``, such as ``{"waits": False}``.
    """

    name: str
    factors: Mapping[str, float]
    why: str = ""
    flags: Mapping[str, bool] = field(default_factory=dict)


def gains(step: Step, effects: Iterable[Effect]) -> dict[str, float]:
    """Each knob alone: name → how many times as fast."""
    return {effect.name: step.whole_s / step.taking([effect]).whole_s for effect in effects}


def climb(step: Step, effects: Iterable[Effect]) -> dict[str, float]:
    """One knob after another, in the given order: name → how many times as fast as at the start."""
    taken, found = [], {}
    for effect in effects:
        taken.append(effect)
        found[effect.name] = step.whole_s / step.taking(taken).whole_s
    return found


def best_order(step: Step, effects: Iterable[Effect]) -> list[tuple[str, float]]:
    """Always the knob that leaves the shortest step, until none shortens it: (name, seconds of the step after it)."""
    left, order = list(effects), []
    while left:
        best = min(left, key=lambda effect: step.taking([effect]).whole_s)
        after = step.taking([best])
        if after.whole_s >= step.whole_s:
            break
        step = after
        left.remove(best)
        order.append((best.name, step.whole_s))
    return order
