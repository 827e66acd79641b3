"""``dltutorial bench launch``: what it costs to have ranks, seen from a notebook.

In: how often. Out: seconds from the start of a cell to its end, in a real kernel: the first launch of 2 ranks, which
waits for torch's imports, to the end of its first collective; the next launches; the same for ``%%ranks`` cells.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from dltutorial.course.bench_rows import Options, Row
from dltutorial.errors import CourseError

# Seconds, on 2 CPU cores.
BUDGETS_S: Mapping[str, float | None] = MappingProxyType({
    "launch, cold": 4.0,
    "launch, warm": None,
    "%%ranks cell, cold": 4.0,
    "%%ranks cell, warm": 0.5,
})  # fmt: skip

_TOTAL = """
def total():
    import torch, torch.distributed as dist
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()
"""
_LAUNCH = "from dltutorial.launch import launch\nassert launch(total, 2) == [2.0, 2.0]"
_LOAD = "%load_ext dltutorial.launch.cells"
_CELL = f"%%ranks 2\n{_TOTAL}\nassert total() == 2.0"


def launch(options: Options) -> Iterator[Row]:
    """Time cells of a fresh kernel for each repeat."""
    from tqdm.auto import tqdm

    samples: dict[str, list[float]] = {what: [] for what in BUDGETS_S}
    for repeat in tqdm(range(options.repeats + 1), desc="launch", unit="kernel"):
        for what, cells in (("launch", [_LAUNCH]), ("%%ranks cell", [_LOAD, _CELL])):
            cold_s, warm_s = _kernel_s(cells)
            if repeat:  # the first round warms up: files come from the disk
                samples[f"{what}, cold"].append(cold_s)
                samples[f"{what}, warm"].append(warm_s)
    for what, values in samples.items():
        yield Row(what, tuple(values), budget=BUDGETS_S[what])


def _kernel_s(cells: Sequence[str], n_warm: int = 3) -> tuple[float, float]:
    """Seconds of all cells in a fresh kernel, and of the last one when it has run ``n_warm`` times more."""
    from jupyter_client.manager import start_new_kernel

    with contextlib.ExitStack() as stack:
        manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
        stack.callback(manager.shutdown_kernel, now=True)
        stack.callback(client.stop_channels)
        _cell_s(client, _TOTAL)
        cold_s = sum(_cell_s(client, cell) for cell in cells)
        return cold_s, [_cell_s(client, cells[-1]) for _ in range(n_warm)][-1]


def _cell_s(client: object, code: str) -> float:
    """Seconds of one cell.

    Raises:
        CourseError: it failed.
    """
    began_s = time.perf_counter()
    reply = client.execute_interactive(code, store_history=False, output_hook=lambda message: None)["content"]
    if reply["status"] != "ok":
        raise CourseError(f"a cell that starts ranks failed: {reply.get('evalue', '')}; see dltutorial doctor")
    return time.perf_counter() - began_s
