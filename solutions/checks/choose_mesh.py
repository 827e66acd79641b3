"""Checks of chapter 19's exercise, second part: the fastest mesh (data, tensor, pipeline) below a cap on memory."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case

Layout = tuple[int, int, int]


class Job(NamedTuple):
    """What the learner's function is given, in this order."""

    ranks: int
    node: int
    heads: int
    blocks: int
    batch: int
    states_gb: float
    sample_gb: float
    cap_gb: float
    talk: float


def held_gb(job: Job, layout: Layout, parts: Callable = min, cut: str = "tptp") -> float:
    """On rank 0. Well-known mistakes: another number of parts in flight, something that is not cut by t or p."""
    d, t, p = layout
    by = [size if letter in "tp" else 1 for size, letter in zip((t, p, t, p), cut, strict=True)]
    n = parts(job.batch // d, p)
    return job.states_gb / (by[0] * by[1]) + n * job.sample_gb / (by[2] * by[3])


def slowness(job: Job, layout: Layout, talk: bool = True, bubble: Callable | None = None) -> float:
    """Times the computing alone."""
    d, t, p = layout
    wait = (bubble or (lambda m, p: (m + p - 1) / m))(job.batch // d, p)
    return wait * (1 + (job.talk * (t - 1) / t if talk else 0))


def _divides(job: Job, layout: Layout, but: str = "") -> str:
    """What is not divided; "" if all is."""
    d, t, p = layout
    told = {
        "ranks": ("d · t · p must be the number of ranks.", d * t * p == job.ranks),
        "heads": ("Tensor parallelism gives each rank whole heads: t must divide them.", job.heads % t == 0),
        "node": ("t ranks talk in every block: they must lie in one node, so t divides its ranks.", job.node % t == 0),
        "blocks": ("Each stage has as many blocks as the others: p must divide them.", job.blocks % p == 0),
        "batch": ("Each group has as many samples as the others: d must divide the batch.", job.batch % d == 0),
    }
    return next((hint for what, (hint, right) in told.items() if not right and what != but), "")


def best(job: Job, held: Callable = held_gb, slow: Callable = slowness, but: str = "") -> Layout | None:
    """The fastest of what fits; ``but`` is what a wrong answer forgets to divide."""
    sizes = [n for n in range(1, job.ranks + 1) if job.ranks % n == 0]
    every = [(d, t, job.ranks // (d * t)) for d in sizes for t in sizes if job.ranks % (d * t) == 0]
    able = [layout for layout in every if not _divides(job, layout, but)]
    fit = [layout for layout in able if job.batch >= layout[0] and held(job, layout) <= job.cap_gb]
    return min(fit, key=lambda layout: slow(job, layout), default=None)


def _in_flight(parts: Callable) -> dict[str, Callable]:
    return {"held": lambda job, at: held_gb(job, at, parts)}


def _cut(by: str) -> dict[str, Callable]:
    return {"held": lambda job, at: held_gb(job, at, cut=by)}


def _parts(m: Callable) -> dict[str, Callable]:
    """Who takes m(job, layout) for the number of parts, held and waited for."""
    return {
        "held": lambda job, at: held_gb(job, at, lambda _, p: min(m(job, at), p)),
        "slow": lambda job, at: slowness(job, at, bubble=lambda _, p: (m(job, at) + p - 1) / m(job, at)),
    }


def _bubble(bubble: Callable) -> dict[str, Callable]:
    return {"slow": lambda job, at: slowness(job, at, bubble=bubble)}


# What a wrong answer takes for held or slow, and what to say to it.
MISTAKES: tuple[tuple[dict[str, Any], str], ...] = (
    (_in_flight(lambda m, p: m), "With 1F1B a rank holds at most p parts, not all m."),
    (_in_flight(lambda m, p: 1), "Rank 0 holds more than one part: min(m, p)."),
    (_in_flight(lambda m, p: p), "There may be fewer parts than stages: min(m, p) are held."),
    (_cut("--tp"), "t and p cut the states, too: a rank has 1/(t p) of them."),
    (_cut("-ptp"), "Cutting layers cuts their states as well: a rank has 1/(t p) of all."),
    (_cut("t-tp"), "A stage has only its own blocks' states: 1/(t p) of all."),
    (_cut("tpt-"), "A stage keeps the activations of its own blocks only: 1/p of a sample's."),
    (_cut("tp-p"), "Here t cuts the activations, too: 1/t of a sample's."),
    ({"held": lambda job, at: job.states_gb / (at[1] * at[2])}, "The activations in flight need room, too."),
    (
        {"held": lambda job, at: held_gb(job._replace(states_gb=0), at)},
        "The states need room, too.",
    ),
    ({"held": lambda job, at: held_gb(job, at) + 1e-9}, "What fills the cap exactly fits, too."),
    ({"held": lambda job, at: 0}, "Some of these do not fit below the cap."),
    ({"slow": lambda job, at: slowness(job, at, talk=False)}, "A larger t costs messages: 1 + talk (t − 1)/t."),
    (_bubble(lambda m, p: 1), "A longer pipeline idles more: (m + p − 1)/m."),
    (
        _bubble(lambda m, p: 1 + (p - 1) / (m + p - 1)),
        "(p − 1)/(m + p − 1) is a share of all time; asked is all time over useful time.",
    ),
    (_bubble(lambda m, p: 1 + p / m), "One stage alone has no bubble: (m + p − 1)/m."),
    (
        {"slow": lambda job, at: slowness(job, at, talk=False) + job.talk * (at[1] - 1) / at[1]},
        "Messages are as much longer in a pipeline that waits: the two are multiplied.",
    ),
    (
        {"slow": lambda job, at: slowness(job._replace(batch=job.batch * at[0]), at)},
        "Each of the d groups has its share of the batch only: m is batch / d.",
    ),
    (
        _parts(lambda job, at: job.batch),
        "Each of the d groups has its share of the batch only: m is batch / d, for what is held and for the bubble.",
    ),
    (
        _parts(lambda job, at: job.batch / (at[0] * at[2])),
        "All parts of a group pass through each of its stages: m is batch / d, whatever p is.",
    ),
    (
        {"slow": lambda job, at: slowness(job, at, talk=False) * (1 + job.talk * (at[1] - 1))},
        "Messages take talk · (t − 1)/t times the work: divided by t.",
    ),
    (
        {"held": lambda job, at: held_gb(job, at) if at[1] * at[2] <= job.node else math.inf},
        "Only the t ranks of a layer must lie in one node; a pipeline may go through several: t · p is not bound.",
    ),
    ({"slow": lambda job, at: -at[0]}, "Most data parallelism is not always fastest: fewer parts, more bubble."),
    ({"slow": lambda job, at: at[0]}, "Fewest groups are not always fastest: a group costs no bubble of its own."),
)


def _as_good(job: Job, got: Any, held: Callable = held_gb, slow: Callable = slowness) -> bool:
    """It is the best, or as good, to who takes these for held and slow."""
    wanted = best(job, held, slow)
    if wanted is None or not (isinstance(got, tuple) and len(got) == 3) or _divides(job, got):
        return got == wanted
    return held(job, got) <= job.cap_gb and slow(job, got) < slow(job, wanted) + 1e-9


def _known(fn: Callable) -> str:
    """What to say to an answer that makes a well-known mistake, and makes it in every case."""
    answers = [fn(*job) for job in JOBS.values()]
    for mistake, hint in MISTAKES:
        if all(_as_good(job, got, **mistake) for job, got in zip(JOBS.values(), answers, strict=True)):
            return hint
    wanted = [best(job) for job in JOBS.values()]
    orders = [[at and tuple(at[n] for n in order) for at in wanted] for order in itertools.permutations(range(3))]
    return "The right numbers in another order: data, tensor, pipeline." if answers in orders[1:] else ""


def _check(fn: Callable, *given: Any) -> None:
    job = Job(*given)
    wanted, got = best(job), fn(*job)
    if wanted is None:
        if got is not None:
            raise Wrong(None, got, _known(fn) or "Nothing fits below the cap: return None.")
        return
    told = f"{wanted}: {held_gb(job, wanted):.3g} GB, {slowness(job, wanted):.3g} × the work"
    if got is None:
        raise Wrong(told, got, _known(fn) or "Something fits.")
    if not isinstance(got, tuple) or len(got) != 3 or not all(type(n) is int and n > 0 for n in got):
        raise Wrong(told, got, "Return three whole numbers, (data, tensor, pipeline), as a tuple.")
    if hint := _divides(job, got):
        raise Wrong(told, got, _known(fn) or hint)
    found = f"{got}: {held_gb(job, got):.3g} GB, {slowness(job, got):.3g} × the work"
    if held_gb(job, got) > job.cap_gb:
        raise Wrong(told, found, _known(fn) or f"More than {job.cap_gb:g} GB: states, and activations in flight.")
    if slowness(job, got) > slowness(job, wanted) + 1e-9:
        raise Wrong(told, found, _known(fn) or "It fits; another one is faster.")


JOBS = {
    "Where all fits on each rank": Job(8, 8, 4, 24, 64, 8, 0.25, 40, 0.4),
    "States that do not fit": Job(16, 8, 4, 24, 12, 80, 20, 80, 0.4),
    "32 ranks: many stages or many pieces?": Job(32, 8, 12, 12, 64, 40, 16, 24, 0.8),
    "Two pieces, or four stages": Job(16, 8, 4, 24, 64, 40, 8, 24, 0.4),
    "Small nodes": Job(16, 4, 16, 8, 4, 80, 20, 24, 0.4),
    "Six heads": Job(16, 8, 6, 8, 12, 40, 8, 20, 0.4),
    "Exactly as much as there is": Job(8, 8, 4, 24, 16, 40, 16, 36, 0.8),
    "Large activations": Job(8, 8, 4, 24, 16, 40, 16, 40, 0.8),
    "A small batch": Job(16, 4, 12, 8, 4, 80, 16, 80, 0.8),
    "Fewer parts than stages": Job(16, 8, 4, 16, 2, 160, 20, 24, 0.8),
    "Few blocks, many samples": Job(8, 8, 4, 12, 64, 40, 4, 20, 0.4),
    "Three stages": Job(24, 4, 8, 12, 16, 40, 4, 12, 0.1),
    "Twelve stages below a tight cap": Job(24, 6, 8, 12, 16, 40, 20, 12, 0.1),
    "Nodes of six": Job(24, 6, 12, 12, 16, 40, 4, 12, 0.1),
    "Eight pieces": Job(24, 8, 8, 12, 16, 40, 4, 12, 0.1),
    "Bubble and messages, one times the other": Job(16, 4, 8, 16, 32, 112, 8, 20, 0.5),
    "Four heads in nodes of six": Job(24, 6, 4, 24, 24, 112, 6, 20, 0.1),
    "Nothing fits": Job(8, 8, 4, 24, 16, 40, 400, 20, 0.4),
}


EXERCISE = Exercise(
    name="choose_mesh",
    chapter="19",
    cases=tuple(case(name, _check, *job) for name, job in JOBS.items()),
    hints=(
        "How many meshes are there for 32 ranks? Is it worth being clever?",
        "What does rank 0 hold, when it holds most? Which of t and p cut which term?",
        "How many parts has a group of the batch? What does a bubble cost with so many?",
    ),
    code=("for d, t, p in …: m = batch // d; held = (states_gb + min(m, p) * sample_gb) / (t * p); …",),
)
