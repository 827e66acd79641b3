"""Runs that a GPU could have made: a host that launches, a device that works through its queue, and a loader.

In: a few times and a seed. Out: a :class:`~dltutorial.profile.events.Trace` as torch's profiler would have recorded
it. Nothing in it is drawn to look like a bottleneck: what waits for what follows from the times. Whatever is shown
of such a trace must be called simulated.

The rules are those of CUDA: a launch returns at once, kernels of a stream run one after the other, none before it was
launched, and a synchronising call returns when the queue is empty.
"""

import random
from dataclasses import dataclass

from dltutorial.profile.events import STEP, Event, Trace

_ROWS = ("thread 1", "thread 2", "GPU 0 stream 7")
_HOST, _LOADER, _STREAM = range(3)
_PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class SimulatedRun:
    """What a run consists of.

    Attributes:
        load_s: to make one batch.
        prefetch: batches that another thread makes ahead; 0: the stepping thread makes them itself.
        kernels: launched in a step.
        launch_s: the host's time for one launch.
        kernel_s: the device's time for one kernel.
        products: the share of kernels that are matrix products.
        synchronise_every: kernels after which the host waits for the device; 0: never within a step.
        synchronise_steps: the host waits for the device at the end of each step; else it runs ahead.
        steps: recorded.
    """

    load_s: float = 1e-3
    prefetch: int = 0
    kernels: int = 60
    launch_s: float = 8e-6
    kernel_s: float = 100e-6
    products: float = 0.5
    synchronise_every: int = 0
    synchronise_steps: bool = True
    steps: int = 5

    def trace(self, seed: int = 0) -> Trace:
        """What the profiler would have recorded; times vary by some percent, as the seed says."""
        machine = _Machine(self, seed)
        for _ in range(self.steps):
            machine.step()
        return Trace.of(machine.events, _ROWS)


class _Machine:
    """The clocks of host, loader and device, and what they have done."""

    def __init__(self, run: SimulatedRun, seed: int) -> None:
        self.run, self.random = run, random.Random(seed)
        self.now_s = self.device_free_s = 0.0
        self.ready_s: list[float] = []  # when each batch is made
        self.taken_s: list[float] = []
        self.events: list[Event] = []

    def step(self) -> None:
        """One whole training step."""
        start_s = self.now_s
        self.load()
        for phase in _PHASES:
            phase_s = self.now_s
            for number in range(1, 1 + max(1, self.run.kernels // len(_PHASES))):
                self.launch()
                if self.run.synchronise_every and number % self.run.synchronise_every == 0:
                    self.synchronise()
            self.add(phase, "range", phase_s, self.now_s)
        if self.run.synchronise_steps:
            self.synchronise()
        self.add(STEP, "range", start_s, self.now_s)

    def load(self) -> None:
        """Make a batch here, or wait until the other thread has one; that makes no more than ``prefetch`` ahead."""
        start_s, n = self.now_s, len(self.taken_s)
        if self.run.prefetch:
            while len(self.ready_s) <= n:
                made = len(self.ready_s)
                room_s = self.taken_s[made - self.run.prefetch] if made >= self.run.prefetch else 0.0
                begin_s = max(self.ready_s[-1] if self.ready_s else 0.0, room_s)
                self.ready_s.append(begin_s + self.about(self.run.load_s))
                self.add("augment", "range", begin_s, self.ready_s[-1], _LOADER)
            self.now_s = max(self.now_s, self.ready_s[n]) + 20e-6
        else:
            self.now_s += self.about(self.run.load_s)
        self.taken_s.append(self.now_s)
        self.add("load", "range", start_s, self.now_s)

    def launch(self) -> None:
        """One operator on the host, one kernel on the device."""
        start_s, product = self.now_s, self.random.random() < self.run.products
        self.now_s += self.about(self.run.launch_s)
        self.add("aten::mm" if product else "aten::add", "operator", start_s, self.now_s)
        self.add("cudaLaunchKernel", "runtime", start_s + 0.4 * (self.now_s - start_s), self.now_s)
        begin_s = max(self.now_s, self.device_free_s)
        self.device_free_s = begin_s + self.about(self.run.kernel_s)
        name = "gemm_bf16_128x128" if product else "vectorized_elementwise_kernel"
        self.add(name, "kernel", begin_s, self.device_free_s, _STREAM)

    def synchronise(self) -> None:
        """The host waits until the device's queue is empty."""
        start_s = self.now_s
        self.now_s = max(self.now_s + 5e-6, self.device_free_s)
        self.add("cudaStreamSynchronize", "runtime", start_s, self.now_s)

    def add(self, name: str, category: str, start_s: float, end_s: float, row: int = _HOST) -> None:
        """Record an event."""
        self.events.append(Event(name, category, start_s, end_s - start_s, row))

    def about(self, seconds: float) -> float:
        """A time that varies by some percent."""
        return seconds * self.random.uniform(0.9, 1.1)
