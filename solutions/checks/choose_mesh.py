"""Checks of the second part of chapter 19's exercise: the fastest mesh that fits into the memory of a rank.

A mesh has d data-parallel groups, t tensor-parallel ranks and p pipeline stages. The answer gets a ``Job`` and returns
the mesh (d, t, p) with the shortest time among those whose memory on rank 0 is below the cap. The checks compare it
with a search over all meshes. Known mistakes are other formulas for the memory or the time. A learner gets the hint of
a mistake if this mistake explains the answers to all jobs.

Legend: m micro-batches of a group. Memory is in GB, and time in units of the computation alone.

Source: Narayanan et al. 2021, arXiv:2104.04473
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case

_TOLERANCE = 1e-9


class Mesh(NamedTuple):
    """Data-parallel groups, tensor-parallel ranks and pipeline stages."""

    d: int
    t: int
    p: int


class Job(NamedTuple):
    """The arguments of the learner's function, in their order."""

    ranks: int
    node: int
    heads: int
    blocks: int
    batch: int
    states_gb: float
    sample_gb: float
    cap_gb: float
    talk: float


Formula = Callable[[Job, Mesh], float]


def micro_batches(job: Job, mesh: Mesh) -> float:
    """Return the number of micro-batches of one data-parallel group, which have one sample each."""
    return job.batch // mesh.d


def memory_gb(
    job: Job,
    mesh: Mesh,
    max_in_flight: float | None = None,
    states_shards: int | None = None,
    sample_shards: int | None = None,
) -> float:
    """Return the memory of rank 0. The last three arguments describe mistakes.

    Args:
        job: The job.
        mesh: The mesh.
        max_in_flight: The micro-batches whose activations rank 0 holds; the correct number is min(m, p).
        states_shards: The ranks over which the model states are sharded; the correct number is t p.
        sample_shards: The ranks over which the activations of a sample are sharded; the correct number is t p.
    """
    shards = mesh.t * mesh.p
    if max_in_flight is None:
        max_in_flight = min(micro_batches(job, mesh), mesh.p)
    if states_shards is None:
        states_shards = shards
    if sample_shards is None:
        sample_shards = shards
    return job.states_gb / states_shards + max_in_flight * job.sample_gb / sample_shards


def messages(job: Job, mesh: Mesh) -> float:
    """Return the time of the messages of tensor parallelism."""
    return job.talk * (mesh.t - 1) / mesh.t


def time_with_bubble(m: float, p: float) -> float:
    """Return the time of a pipeline of p stages with m micro-batches."""
    return (m + p - 1) / m


def time(job: Job, mesh: Mesh) -> float:
    """Return the time of a step."""
    return time_with_bubble(micro_batches(job, mesh), mesh.p) * (1 + messages(job, mesh))


def _violated_rule(job: Job, mesh: Mesh) -> str:
    """Return the hint for a size that does not divide what it must divide, or an empty string."""
    d, t, p = mesh
    rules = [
        (d * t * p == job.ranks, "d · t · p must be the number of ranks."),
        (job.heads % t == 0, "Tensor parallelism gives each rank complete heads, so t must divide their number."),
        (job.node % t == 0, "The t ranks communicate in every block. They must be in one node, so t divides node."),
        (job.blocks % p == 0, "Each stage has equally many blocks, so p must divide their number."),
        (job.batch % d == 0, "Each group has equally many samples, so d must divide the batch."),
    ]
    violated = [hint for holds, hint in rules if not holds]
    return violated[0] if violated else ""


def best(job: Job, memory: Formula = memory_gb, duration: Formula = time) -> Mesh | None:
    """Return the fastest mesh that fits by these formulas, or None if none fits."""
    sizes = [n for n in range(1, job.ranks + 1) if job.ranks % n == 0]
    meshes = [Mesh(d, t, job.ranks // (d * t)) for d, t in itertools.product(sizes, repeat=2) if d * t <= job.ranks]
    possible = [mesh for mesh in meshes if not _violated_rule(job, mesh)]
    fitting = [mesh for mesh in possible if memory(job, mesh) <= job.cap_gb]
    return min(fitting, key=lambda mesh: duration(job, mesh), default=None)


class Mistake(NamedTuple):
    """The formulas of a wrong answer, and the hint for it."""

    hint: str
    memory: Formula = memory_gb
    duration: Formula = time

    def explains(self, job: Job, got: Any) -> bool:
        """Return whether an answer is the best mesh by these formulas, or as good as the best."""
        expected = best(job, self.memory, self.duration)
        if expected is None or not isinstance(got, tuple) or len(got) != 3:
            return bool(got == expected)
        mesh = Mesh(*got)
        if _violated_rule(job, mesh):
            return False
        fits = self.memory(job, mesh) <= job.cap_gb
        return fits and self.duration(job, mesh) < self.duration(job, expected) + _TOLERANCE


def _wrong_memory(hint: str, memory: Formula) -> Mistake:
    return Mistake(hint, memory=memory)


def _wrong_time(hint: str, duration: Formula) -> Mistake:
    return Mistake(hint, duration=duration)


def _wrong_bubble(hint: str, wrong: Callable[[float, float], float]) -> Mistake:
    def duration(job: Job, mesh: Mesh) -> float:
        return wrong(micro_batches(job, mesh), mesh.p) * (1 + messages(job, mesh))

    return Mistake(hint, duration=duration)


def _wrong_micro_batches(hint: str, count: Formula) -> Mistake:
    """Return the mistake of another number of micro-batches in both formulas."""

    def memory(job: Job, mesh: Mesh) -> float:
        return memory_gb(job, mesh, max_in_flight=min(count(job, mesh), mesh.p))

    def duration(job: Job, mesh: Mesh) -> float:
        return time_with_bubble(count(job, mesh), mesh.p) * (1 + messages(job, mesh))

    return Mistake(hint, memory, duration)


def _memory_within_node(job: Job, mesh: Mesh) -> float:
    """Return no possible memory for meshes whose pipelines do not lie in one node."""
    return memory_gb(job, mesh) if mesh.t * mesh.p <= job.node else math.inf


MISTAKES = (
    _wrong_memory(
        "With 1F1B a rank holds at most p micro-batches, not all m.",
        lambda job, mesh: memory_gb(job, mesh, max_in_flight=micro_batches(job, mesh)),
    ),
    _wrong_memory(
        "Rank 0 holds more than one micro-batch. The number is min(m, p).",
        lambda job, mesh: memory_gb(job, mesh, max_in_flight=1),
    ),
    _wrong_memory(
        "There may be fewer micro-batches than stages. Then a rank holds min(m, p).",
        lambda job, mesh: memory_gb(job, mesh, max_in_flight=mesh.p),
    ),
    _wrong_memory(
        "The states are divided by t and p, too. A rank stores 1/(t p) of them.",
        lambda job, mesh: memory_gb(job, mesh, states_shards=1),
    ),
    _wrong_memory(
        "Tensor parallelism divides the states, too. A rank stores 1/(t p) of all.",
        lambda job, mesh: memory_gb(job, mesh, states_shards=mesh.p),
    ),
    _wrong_memory(
        "A stage has only the states of its own blocks, so a rank stores 1/(t p) of all.",
        lambda job, mesh: memory_gb(job, mesh, states_shards=mesh.t),
    ),
    _wrong_memory(
        "A stage stores only the activations of its own blocks, which are 1/p of those of a sample.",
        lambda job, mesh: memory_gb(job, mesh, sample_shards=mesh.t),
    ),
    _wrong_memory(
        "Here the activations are divided by t, too.",
        lambda job, mesh: memory_gb(job, mesh, sample_shards=mesh.p),
    ),
    _wrong_memory(
        "The activations in flight need memory, too.",
        lambda job, mesh: memory_gb(job, mesh, max_in_flight=0),
    ),
    _wrong_memory(
        "The states need memory, too.",
        lambda job, mesh: memory_gb(job._replace(states_gb=0), mesh),
    ),
    _wrong_memory(
        "A mesh that needs exactly the memory of a rank fits.",
        lambda job, mesh: memory_gb(job, mesh) + _TOLERANCE,
    ),
    _wrong_memory("Some of these meshes do not fit into the memory.", lambda job, mesh: 0),
    _wrong_time(
        "Tensor parallelism costs communication. The factor is 1 + talk (t − 1)/t.",
        lambda job, mesh: time_with_bubble(micro_batches(job, mesh), mesh.p),
    ),
    _wrong_bubble("A longer pipeline has a larger bubble. The factor is (m + p − 1)/m.", lambda m, p: 1),
    _wrong_bubble(
        "(p − 1)/(m + p − 1) is a share of the total time. Here you need total time / useful time.",
        lambda m, p: 1 + (p - 1) / (m + p - 1),
    ),
    _wrong_bubble("A single stage has no bubble. The factor is (m + p − 1)/m.", lambda m, p: 1 + p / m),
    _wrong_time(
        "The time with communication is the work of the pipeline, so multiply the two factors.",
        lambda job, mesh: time_with_bubble(micro_batches(job, mesh), mesh.p) + messages(job, mesh),
    ),
    _wrong_time(
        "Each of the d groups has only its own samples. So m is batch / d.",
        lambda job, mesh: time_with_bubble(job.batch, mesh.p) * (1 + messages(job, mesh)),
    ),
    _wrong_micro_batches(
        "Each of the d groups has only its own samples. So m is batch / d, for the memory and for the bubble.",
        lambda job, mesh: job.batch,
    ),
    _wrong_micro_batches(
        "All micro-batches of a group pass through each stage. So m is batch / d for every p.",
        lambda job, mesh: job.batch / (mesh.d * mesh.p),
    ),
    _wrong_time(
        "Communication takes talk · (t − 1)/t times the work. Divide by t.",
        lambda job, mesh: time_with_bubble(micro_batches(job, mesh), mesh.p) * (1 + job.talk * (mesh.t - 1)),
    ),
    _wrong_memory(
        "Only the t ranks of a layer must be in one node. A pipeline may use several nodes, so t · p has no limit.",
        _memory_within_node,
    ),
    _wrong_time(
        "The mesh with the most groups is not always fastest. It has fewer micro-batches and a larger bubble.",
        lambda job, mesh: -mesh.d,
    ),
    _wrong_time(
        "The mesh with the fewest groups is not always fastest. More groups do not cause a bubble.",
        lambda job, mesh: mesh.d,
    ),
)


def _hint(fn: Callable) -> str:
    """Return the hint of the first mistake that explains the answers to all jobs, or an empty string."""
    answers = {job: fn(*job) for job in JOBS.values()}
    for mistake in MISTAKES:
        if all(mistake.explains(job, got) for job, got in answers.items()):
            return mistake.hint
    for order in itertools.permutations(range(3)):
        if all(got == _reordered(best(job), order) for job, got in answers.items()):
            return "These are the right numbers in another order. Return data, tensor, pipeline."
    return ""


def _reordered(mesh: Mesh | None, order: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if mesh is None else tuple(mesh[position] for position in order)


def _describe(job: Job, mesh: Mesh) -> str:
    return f"{tuple(mesh)}: {memory_gb(job, mesh):.3g} GB, {time(job, mesh):.3g} × the work"


def _as_mesh(fn: Callable, got: Any, expected_text: str) -> Mesh:
    """Return the answer as a mesh, or raise the error for an answer that is none."""
    if got is None:
        raise Wrong(expected_text, got, _hint(fn) or "At least one mesh fits.")
    if isinstance(got, tuple) and len(got) == 3 and all(type(n) is int and n > 0 for n in got):
        return Mesh(*got)
    raise Wrong(expected_text, got, "Return three integers, (data, tensor, pipeline), as a tuple.")


def _check(fn: Callable, job: Job) -> None:
    """The answer must be a mesh that fits, and as fast as the best."""
    expected = best(job)
    got = fn(*job)
    if expected is None:
        if got is not None:
            raise Wrong(None, got, _hint(fn) or "No mesh fits into the memory, so return None.")
        return
    expected_text = _describe(job, expected)
    mesh = _as_mesh(fn, got, expected_text)
    violated = _violated_rule(job, mesh)
    if violated:
        raise Wrong(expected_text, got, _hint(fn) or violated)
    if memory_gb(job, mesh) > job.cap_gb:
        hint = f"The states and the activations in flight need more than {job.cap_gb:g} GB."
        raise Wrong(expected_text, _describe(job, mesh), _hint(fn) or hint)
    if time(job, mesh) > time(job, expected) + _TOLERANCE:
        raise Wrong(expected_text, _describe(job, mesh), _hint(fn) or "This mesh fits, but another one is faster.")


JOBS = {
    "Everything fits on each rank": Job(8, 8, 4, 24, 64, 8, 0.25, 40, 0.4),
    "States that do not fit": Job(16, 8, 4, 24, 12, 80, 20, 80, 0.4),
    "32 ranks: many stages or a large t?": Job(32, 8, 12, 12, 64, 40, 16, 24, 0.8),
    "t = 2, or four stages": Job(16, 8, 4, 24, 64, 40, 8, 24, 0.4),
    "Small nodes": Job(16, 4, 16, 8, 4, 80, 20, 24, 0.4),
    "Six heads": Job(16, 8, 6, 8, 12, 40, 8, 20, 0.4),
    "Exactly the memory of a rank": Job(8, 8, 4, 24, 16, 40, 16, 36, 0.8),
    "Large activations": Job(8, 8, 4, 24, 16, 40, 16, 40, 0.8),
    "A small batch": Job(16, 4, 12, 8, 4, 80, 16, 80, 0.8),
    "Fewer micro-batches than stages": Job(16, 8, 4, 16, 2, 160, 20, 24, 0.8),
    "Few blocks, many samples": Job(8, 8, 4, 12, 64, 40, 4, 20, 0.4),
    "Three stages": Job(24, 4, 8, 12, 16, 40, 4, 12, 0.1),
    "Twelve stages in little memory": Job(24, 6, 8, 12, 16, 40, 20, 12, 0.1),
    "Nodes of six": Job(24, 6, 12, 12, 16, 40, 4, 12, 0.1),
    "t = 8": Job(24, 8, 8, 12, 16, 40, 4, 12, 0.1),
    "Bubble and communication, multiplied": Job(16, 4, 8, 16, 32, 112, 8, 20, 0.5),
    "Four heads in nodes of six": Job(24, 6, 4, 24, 24, 112, 6, 20, 0.1),
    "Nothing fits": Job(8, 8, 4, 24, 16, 40, 400, 20, 0.4),
}
EXERCISE = Exercise(
    name="choose_mesh",
    chapter="19",
    cases=tuple(case(name, _check, job) for name, job in JOBS.items()),
    hints=(
        "How many meshes are there for 32 ranks? Can you simply try all of them?",
        "What does rank 0 store when it stores most? Which terms are divided by t, and which by p?",
        "How many micro-batches does a group have? By which factor does the bubble make the step longer?",
    ),
    code=("for d, t, p in …: m = batch // d; stored = (states_gb + min(m, p) * sample_gb) / (t * p); …",),
)
