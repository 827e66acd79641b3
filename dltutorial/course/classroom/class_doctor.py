"""The text of ``dltutorial doctor --class N``: each number of a plan beside what it rests on, and the lines for Slurm.

In: what was asked on the command line. Out: plain text.
"""

from collections.abc import Sequence

from dltutorial import config, machine
from dltutorial.course import notebooks
from dltutorial.course.classroom import markup, schedule, seats
from dltutorial.course.classroom.seats import AFTER_MIN, BEFORE_MIN, CORES_A_LEARNER, Node, Plan
from dltutorial.errors import CourseError

Row = tuple[str, str, str]


def report(
    learners: int,
    day: str | None = None,
    chapters: Sequence[str] = (),
    minutes: int | None = None,
    cores: int | None = None,
    memory_gb: float | None = None,
) -> str:
    """What so many learners need.

    Args:
        learners: how many.
        day: a schedule's name; neither that nor chapters: the whole day.
        chapters: by number or name, in place of a schedule.
        minutes: how long the class lasts; None: the schedule's length, or the chapters' minutes.
        cores, memory_gb: of a node; None: this machine's.

    Raises:
        CourseError: something that cannot be, in one line.
    """
    if day and chapters:
        raise CourseError("give --schedule or --chapters, not both: a schedule has its own chapters")
    day = None if chapters else day or "one-day"
    known = {card.number: card for card in map(notebooks.card, notebooks.chapters())}
    wanted = [notebooks.find(one).stem[:2] for one in chapters] or schedule.chapters(day)
    asked = list(dict.fromkeys(wanted))
    needed = schedule.minutes(day) if day else sum(known[chapter].minutes or 0 for chapter in asked)
    preset = config.preset().name
    plan = seats.plan(learners, asked, needed if minutes is None else minutes, _node(cores, memory_gb), preset)
    whose = "nodes like this machine" if cores is None and memory_gb is None else "nodes as described"
    node = f"{markup.plural(plan.node.cores, 'core')}, {plan.node.memory_bytes / 1e9:.3g} GB"
    head = f"A class of {learners} on {whose}: {node}"
    rows = [*_time(plan, day, needed, preset), *_machine(plan, preset), *_other(plan)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {what:<{widths[0]}}  {value:<{widths[1]}}  {why}" for what, value, why in rows]
    return "\n".join([head, *lines, "", _slurm(plan, preset)])


def _node(cores: int | None, memory_gb: float | None) -> Node:
    """A node as described; what was not said is as here.

    Raises:
        CourseError: impossible numbers, or this machine does not tell its memory.
    """
    if cores is not None and not 1 <= cores <= 10_000:
        raise CourseError(f"--cores {cores}: a node has 1 to 10,000 cores")
    if memory_gb is not None and not 0 < memory_gb <= 100_000:
        raise CourseError(f"--memory {memory_gb:g}: give gigabytes above 0 and up to 100,000")
    here = machine.memory_bytes()[0] if memory_gb is None else int(memory_gb * 1e9)
    if here is None:
        raise CourseError("this machine does not tell how much memory it has; give it as --memory GB")
    gpus = len(machine.accelerators()) if cores is None else 0
    return Node(machine.cores() if cores is None else cores, here, gpus)


def _time(plan: Plan, day: str | None, needed: int, preset: str) -> list[Row]:
    source = f"schedule {day}, breaks included" if day else "minutes of the chapters, no breaks, no exercises"
    rows = [("chapters", " ".join(plan.chapters), source)]
    fits = ""
    if plan.minutes != needed:
        more = plan.minutes - needed
        fits = f"; {more} min are left" if more > 0 else f"; {-more} min too few: leave something out"
    rows.append(("time", _hours(plan.minutes), f"{needed} min to read and do, an estimate of the notebooks{fits}"))
    rows.append(("reserve", _hours(plan.reserved_min), f"{BEFORE_MIN} min before and {AFTER_MIN} min after: assumed"))
    total_s, longest = sum(run.seconds for run in plan.runs.values()), plan.runs[plan.longest]
    where = ", ".join(dict.fromkeys(run.where for run in plan.runs.values()))
    rows.append(("computing", f"{total_s / 60:.1f} min a learner", f"measured: {where}"))
    if not where.endswith(f"preset {preset}"):
        told = "set DLTUTORIAL_PRESET=smoke for the class, or run the chapters on a node of it first"
        rows.append(("preset", f"{preset} here", f"not what was measured: {told}"))
    rows.append(("at worst", f"{longest.seconds:.0f} s to wait", f"measured: chapter {plan.longest} with Run All"))
    return rows


def _machine(plan: Plan, preset: str) -> list[Row]:
    worst = plan.runs[plan.worst]
    fixed = seats.costs()
    others = f"{(fixed['server'] + fixed['kernel']) / 1e9:.2f} GB for JupyterLab and one kernel left open"
    rows = [
        (
            "cores",
            f"{CORES_A_LEARNER} a learner, {CORES_A_LEARNER * plan.learners} in all",
            "what the chapters were measured with; with fewer, claims about times can fail"
            + ("; this node has fewer" if plan.node.cores < CORES_A_LEARNER else ""),
        ),
        (
            "memory",
            f"{plan.learner_bytes / 1e9:.1f} GB a learner",
            f"measured: {worst.peak_bytes / 1e9:.1f} GB in chapter {plan.worst}, {others}",
        ),
        (
            "seats",
            f"{plan.seats} on a node",
            f"cores allow {plan.by_cores}, memory {plan.by_memory} (a tenth is left to the system)",
        ),
        (
            "nodes",
            f"{plan.nodes}, and {plan.spare} spare",
            f"{markup.plural(plan.learners, 'learner')}, {plan.seats} a node; one in 20 may fail: assumed",
        ),
    ]
    if plan.node.gpus or preset in ("gpu", "cluster"):
        told = "no GPU run of the course is recorded; the estimate above is of its CPU runs in preset smoke"
        rows.append(("GPUs", f"{plan.node.gpus} here", f"not estimated: {told}. One a learner measures undisturbed"))
    return rows


def _other(plan: Plan) -> list[Row]:
    fixed = seats.costs()
    page = fixed["page"] * plan.learners
    each = (
        f"measured: {fixed['environment'] / 1e9:.1f} GB environment and {fixed['data'] / 1e9:.1f} GB data, "
        f"once for all, {fixed['runs'] / 1e6:.0f} MB of runs a learner"
    )
    return [
        ("disk", f"{plan.disk_bytes / 1e9:.1f} GB", each),
        (
            "network",
            f"{page / 1e6:,.0f} MB from the hub",
            f"at most {fixed['page'] / 1e6:.0f} MB a browser, JupyterLab's own pages (measured); chapters need none",
        ),
    ]


def _slurm(plan: Plan, preset: str) -> str:
    h, m = divmod(plan.reserved_min, 60)
    memory_mb = int(plan.learner_bytes / 1e6 / 100 + 1) * 100
    nodes = plan.nodes + plan.spare
    lines = [
        "# the site's staff, once (START as 2027-03-01T08:30:00; USERS or Accounts=, as your site has it):",
        f"scontrol create reservation ReservationName=dltutorial StartTime=START Duration={h:02}:{m:02}:00 "
        f"NodeCnt={nodes} Users=USERS",
        "# each learner, or a hub in their name (DATA: the folder with the class's data):",
        f"export DLTUTORIAL_PRESET={preset} DLTUTORIAL_DATA=DATA",
        *(
            ["unset SBATCH_EXCLUSIVE  # several seats on a node; ask for a partition or QOS that allows it"]
            if plan.seats > 1
            else []
        ),
        f"sbatch -N 1 --reservation=dltutorial --cpus-per-task={min(CORES_A_LEARNER, plan.node.cores)} "
        f"--mem={memory_mb}M --time={h:02}:{m:02}:00 slurm/notebook.sbatch",
    ]
    return "Slurm\n" + "\n".join(f"  {line}" for line in lines)


def _hours(minutes: int) -> str:
    h, m = divmod(minutes, 60)
    return f"{h} h {m:02} min" if h else f"{m} min"
