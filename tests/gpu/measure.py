"""Measurements that no chapter makes: traces, the loader, and collectives: python tests/gpu/measure.py traces --out DIR

Input: the name of a measurement, a preset and a folder. Output: a JSON file in this folder, in the form that
``reference/measured/README.md`` describes. Traces are written as ``*.json.gz`` in Chrome's trace format. ``prove.py``
runs this program. On a CPU it makes the measurements that need no GPU.
"""

import argparse
import datetime
import gzip
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler

from dltutorial import config, machine, paths
from dltutorial.course import scripts
from dltutorial.data import weather
from dltutorial.launch.local import launch
from dltutorial.profile import timing

DEVICE = machine.device()
KEPT = {"cpu_op", "user_annotation", "gpu_user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset"}


def row(what: str, samples: list[float], unit: str, **more: str) -> dict[str, object]:
    """One row of a recording."""
    median = statistics.median(samples)
    return {"what": what, "samples": samples, "unit": unit, "predicted": None, "more": more, "median": median}


def write(out: Path, what: str, preset: str, rows: list[dict[str, object]]) -> None:
    """Write a recording, and print it in short."""
    recording = {
        "what": what,
        "how": f"python tests/gpu/measure.py {what} --preset {preset}",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "preset": preset,
        "machine": machine.label(),
        "versions": machine.versions(),
        "rows": rows,
    }
    paths.write_text(out / f"{what}.json", json.dumps(recording, indent=1) + "\n")
    for line in rows:
        print(line["what"], line["median"], line["unit"], *line["more"].values())


def synchronize() -> None:
    """Wait until a GPU has finished."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def traces(out: Path, preset: config.Preset) -> None:
    """Record two steps of the narrow network of chapter 06, eager and captured, and write short traces."""
    scripts.take("vit.py", "pairs.py", "graph_step.py")
    from graph_step import capture, make_step
    from vit import ViT

    machine.use_cores(1)  # one thread starts all operations
    rate = torch.tensor(1e-3, device=DEVICE)
    x, y = torch.randn(2, 1, 5, 32, 64, device=DEVICE)

    def new_step() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        return make_step(ViT((5, 32, 64), 16, 16, 16, 2).to(DEVICE), rate)

    steps = {"eager": new_step()}
    if DEVICE == "cuda":
        steps["captured"] = capture(new_step(), x, y)
    rows = []
    for name, step in steps.items():
        record_trace(partial(step, x, y), out / f"trace-{name}.json.gz")
        timed = timing.alternate({name: partial(step, x, y)}, 15)[name]
        rows.append(row(f"narrow network of chapter 06, {name}", list(timed.samples_s), "s"))
    write(out, "traces", preset.name, rows)


def record_trace(step: Callable[[], object], file: Path) -> None:
    """Record two steps, and write the events that the course's timeline shows."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        schedule = torch.profiler.schedule(wait=0, warmup=3, active=2, repeat=1)
        with torch.profiler.profile(schedule=schedule) as profiler:
            for _ in range(5):
                step()
                synchronize()
                profiler.step()
        profiler.export_chrome_trace(str(raw))
        trace = json.loads(raw.read_text(encoding="utf-8"))
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" or event.get("cat") in KEPT:
            few = {key: event["args"][key] for key in ("stream", "correlation", "name") if key in event.get("args", {})}
            events.append({**event, "args": few})
    short = {"machine": machine.label(), "versions": machine.versions(), "traceEvents": events}
    short["deviceProperties"] = [{"name": d.get("name")} for d in trace.get("deviceProperties", [])]
    with gzip.open(file, "wt", encoding="utf-8") as output:
        json.dump(short, output, separators=(",", ":"))


def loader(out: Path, preset: config.Preset) -> None:
    """Measure the samples per second of chapter 01's samples for several numbers of workers, and the copies."""
    data = weather.ensure(preset)
    scripts.take("vit.py", "pairs.py")
    from pairs import Pairs

    samples = Pairs(data, "train")
    batch_size = preset.global_batch_size
    counts = [n for n in (0, 2, 8, 16) if n <= machine.cores()]
    rows = []
    for n_workers in counts:
        order = RandomSampler(samples, num_samples=10**6)
        batches = DataLoader(
            samples, batch_size, sampler=order, num_workers=n_workers, pin_memory=DEVICE == "cuda", drop_last=True
        )
        rates = samples_per_s(iter(batches), batch_size, n_warmup=1 + n_workers)
        rows.append(row(f"loader, {n_workers} workers", rates, "samples/s"))
    if DEVICE == "cuda":
        rows += copies(torch.stack([torch.stack(samples[n]) for n in range(batch_size)]))
    write(out, "loader", preset.name, rows)


def copies(batch: torch.Tensor) -> list[dict[str, object]]:
    """Measure the copies of a batch to the GPU and inside the GPU."""
    pinned, on_gpu = batch.pin_memory(), batch.to(DEVICE)
    actions = {
        "pageable": partial(batch.to, DEVICE),
        "pinned": partial(pinned.to, DEVICE, non_blocking=True),
        "inside the GPU": on_gpu.clone,
    }
    rows = []
    for name, timed in timing.alternate(actions, 9).items():
        rates = [batch.nbytes / 1e9 / seconds for seconds in timed.samples_s]
        rows.append(row(f"copy of a batch, {name}", rates, "GB/s", batch=f"{batch.nbytes / 1e6:.0f} MB"))
    return rows


def samples_per_s(batches: Iterator, batch_size: int, n_warmup: int, seconds: float = 1.5) -> list[float]:
    """Throughputs of an iterator in three turns of at least ``seconds`` / 3."""
    for _ in itertools.islice(batches, n_warmup):
        pass
    rates = []
    for _ in range(3):
        n_batches, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            next(batches)
            n_batches += 1
        rates.append(n_batches * batch_size / (time.perf_counter() - start))
    return rates


def collectives(out: Path, preset: config.Preset, n_ranks: int) -> None:
    """Measure all-reduce and all-gather for several sizes. One rank communicates only with itself."""
    sizes = [2**20, 2**24, 2**28] if DEVICE == "cuda" else [2**12, 2**20]
    rows = launch(time_collectives, n_ranks, sizes)[0]
    write(out, "collectives", preset.name, rows)


def time_collectives(sizes: list[int]) -> list[dict[str, object]]:
    """Times of collectives on this rank, for tensors of these numbers of bytes."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    # PyTorch 2.13 has a new name for this function.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    rows = []
    for n_bytes in sizes:
        numbers = torch.ones(n_bytes // 4, device=DEVICE)
        gathered = torch.empty(n_ranks * n_bytes // 4, device=DEVICE)
        actions = {
            "all-reduce": partial(dist.all_reduce, numbers),
            "all-gather": partial(all_gather, gathered, numbers),
        }
        for name, action in actions.items():
            seconds = [timed_call(action) for _ in range(12)][2:]
            more = {"ranks": str(n_ranks), "backend": dist.get_backend()}
            rows.append(row(f"{name}, {n_bytes / 2**20:g} MiB", seconds, "s", **more))
    return rows if rank == 0 else []


def timed_call(action: Callable[[], object]) -> float:
    """Seconds of one collective, which all ranks start together."""
    dist.barrier()
    synchronize()
    start = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Read the arguments, and make one measurement in a temporary working folder."""
    parser = argparse.ArgumentParser(description="Make one measurement, and write it to a JSON file.")
    parser.add_argument("what", choices=["traces", "loader", "collectives"])
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON file")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of the collectives")
    args = parser.parse_args()
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    preset = config.preset(args.preset)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)  # the files of the chapters are written here
        if args.what == "traces":
            traces(out, preset)
        elif args.what == "loader":
            loader(out, preset)
        else:
            collectives(out, preset, args.ranks)
        os.chdir(out)


if __name__ == "__main__":
    main()
