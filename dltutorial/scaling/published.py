"""The simulator laid over published runs, with nothing fitted to them.

In: ``reference/scaling_published.csv`` (what was reported), ``scaling_inputs.csv`` (what each run was: one GPU's speed,
the network's layers, samples, bytes on the wire) and ``clusters.csv`` (the links). Out: for each run the efficiency
that the simulator predicts, the error, and what the model leaves out.

One more figure enters: how much GPUs of one kind differ. Sinha et al. 2022 (arXiv:2208.11035) measured it in five
clusters: 8% on average. It is read here as the width between the whiskers of a box plot, which for a normal spread is
5.4 standard deviations. They also report outliers, up to 1.5 times slower, which it leaves out.
"""

from dataclasses import dataclass

import numpy as np

from dltutorial.errors import CourseError
from dltutorial.record import plots
from dltutorial.scaling import clusters, simulator, workloads
from dltutorial.scaling.simulator import Spread, Steps
from dltutorial.scaling.workloads import Workload

GPU_SPREAD = Spread(speed=0.08 / 5.4)


@dataclass(frozen=True)
class PublishedRun:
    """One published run.

    Attributes:
        key, what: its name in the files, and for tables.
        cluster: its name in ``clusters.csv``.
        workload: its network on one of its GPUs.
        base: GPUs whose throughput is 100%.
        gpus, samples_per_gpu: how large it was.
        efficiency: as published.
        communication_share: as published, if it was: what switching the all-reduces off gained.
        left_out: what the model does not know.
    """

    key: str
    what: str
    cluster: str
    workload: Workload
    base: int
    gpus: int
    samples_per_gpu: int
    efficiency: float
    communication_share: float | None
    left_out: str

    def simulate(self, gpus_P: np.ndarray, spread: Spread = GPU_SPREAD) -> Steps:
        """Its step on other numbers of GPUs."""
        links = clusters.load(self.cluster)
        return simulator.simulate(self.workload, links, gpus_P, self.samples_per_gpu, spread=spread)

    def predicted(self, spread: Spread = GPU_SPREAD) -> float:
        """Weak-scaling efficiency at its number of GPUs, as a share of what its base promises."""
        base_s, all_s = self.simulate(np.array([self.base, self.gpus]), spread).step_s
        return float(base_s / all_s)

    @property
    def error(self) -> float:
        """Predicted minus published efficiency; positive: the model promises too much."""
        return self.predicted() - self.efficiency


def runs() -> tuple[PublishedRun, ...]:
    """Every published run whose inputs are known, in the order of the file."""
    inputs = {row["run"]: row for row in plots.reference("scaling_inputs")}
    return tuple(_run(row, inputs[row["run"]]) for row in plots.reference("scaling_published") if row["run"] in inputs)


def run(key: str) -> PublishedRun:
    """One of them. CourseError: there is none of that name."""
    found = {item.key: item for item in runs()}
    if key not in found:
        raise CourseError(f"no published run {key!r}; choose one of: {', '.join(found)}")
    return found[key]


def _run(row: dict[str, str], given: dict[str, str]) -> PublishedRun:
    known = workloads.NETWORKS.get(given["workload"])
    layers = known() if known else workloads.even(row["workload"], 1e6 * float(given["million_parameters"]))
    return PublishedRun(
        key=row["run"], what=f"{row['workload']}, {row['accelerators']} {row['accelerator']}", cluster=given["cluster"],
        workload=layers.at(float(given["rank_samples_per_s"]), int(given["bytes_per_value"])), base=int(row["base"]),
        gpus=int(row["accelerators"]), samples_per_gpu=int(given["samples_per_rank"]),
        efficiency=float(row["efficiency"]),
        communication_share=float(row["communication_share"]) if row["communication_share"] else None,
        left_out=given["left_out"],
    )  # fmt: skip
