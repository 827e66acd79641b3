"""The simulator beside published runs. Nothing is fitted to these runs.

In: three files of ``reference/``. ``scaling_published.csv`` has what was reported. ``scaling_inputs.csv`` has what each
run was, namely the speed of one GPU, the layers of the network, the samples, and the bytes of a gradient value.
``clusters.csv`` has the links. Out: for each run the weak-scaling efficiency that the simulator predicts, and its
error.

One more figure enters, which is how much GPUs of one kind differ. Sinha et al. 2022 (arXiv:2208.11035) measured 8% on
average in five clusters. This module takes it as the width between the whiskers of a box plot, which is 5.4 standard
deviations of a normal distribution. Sinha et al. also report outliers that are up to 1.5 times slower. The model leaves
them out.
"""

from dataclasses import dataclass

import numpy as np

from dltutorial.record import plots
from dltutorial.scaling import clusters, simulator, workloads
from dltutorial.scaling.simulator import Spread
from dltutorial.scaling.workloads import Workload

GPU_SPREAD = Spread(speed=0.08 / 5.4)


@dataclass(frozen=True)
class PublishedRun:
    """One published run.

    Attributes:
        key: its name in the files.
        cluster: name of its cluster in ``clusters.csv``.
        workload: its network on one of its GPUs.
        base: number of GPUs whose throughput counts as 100%.
        gpus: number of GPUs of the run.
        samples_per_gpu: in one step.
        efficiency: as published, as a share.
    """

    key: str
    cluster: str
    workload: Workload
    base: int
    gpus: int
    samples_per_gpu: int
    efficiency: float

    def predicted(self, spread: Spread = GPU_SPREAD) -> float:
        """The predicted weak-scaling efficiency of the run, relative to its base."""
        links = clusters.load(self.cluster)
        gpus_2 = np.array([self.base, self.gpus])
        steps = simulator.simulate(self.workload, links, gpus_2, self.samples_per_gpu, spread=spread)
        base_s, run_s = steps.step_s
        return float(base_s / run_s)

    @property
    def error(self) -> float:
        """Predicted minus published efficiency. It is positive if the model is too optimistic."""
        return self.predicted() - self.efficiency


def runs() -> tuple[PublishedRun, ...]:
    """All published runs whose inputs are known, in the order of the file."""
    inputs = {row["run"]: row for row in plots.reference("scaling_inputs")}
    reported = [row for row in plots.reference("scaling_published") if row["run"] in inputs]
    return tuple(_run(row, inputs[row["run"]]) for row in reported)


def run(key: str) -> PublishedRun:
    """The published run of this name."""
    by_key = {item.key: item for item in runs()}
    return by_key[key]


def _run(reported: dict[str, str], inputs: dict[str, str]) -> PublishedRun:
    """A run from its rows in the two files."""
    if inputs["workload"] in workloads.NETWORKS:
        network = workloads.NETWORKS[inputs["workload"]]()
    else:
        network = workloads.even(1e6 * float(inputs["million_parameters"]))
    return PublishedRun(
        key=reported["run"],
        cluster=inputs["cluster"],
        workload=network.at(float(inputs["rank_samples_per_s"]), int(inputs["bytes_per_value"])),
        base=int(reported["base"]),
        gpus=int(reported["accelerators"]),
        samples_per_gpu=int(inputs["samples_per_rank"]),
        efficiency=float(reported["efficiency"]),
    )
