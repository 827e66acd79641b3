"""Run what the course shows on a GPU, and record the results: ``make gpu`` and ``make gpus``.

Input: a machine with one GPU (``make gpu``) or with several (``make gpus``). Output: a folder with the output of each
part, the executed chapters, and ``measured/``, which has one JSON file for each recording. A file is written as soon as
its part has ended, so a run that is stopped keeps what it has. The most valuable parts come first, and each part has a
time limit of its own.

With ``--dry-run`` the same parts run on the CPU with tiny sizes. ``make gpus`` has not run on GPUs so far. Its parts
were tried with gloo on CPUs.
"""

import argparse
import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from dltutorial import machine, paths
from dltutorial.record import records

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
COURSE = [PYTHON, "-m", "dltutorial"]
MEASURE = [PYTHON, str(Path(__file__).with_name("measure.py"))]
FEW_YEARS = {"DLTUTORIAL_YEARS": "2,1,1"}  # simulated in a minute; the states have the size of the preset


@dataclass(frozen=True)
class Part:
    """One command of a run.

    Attributes:
        name: of its results.
        limit_s: the part is ended after this many seconds.
        command: the program and its arguments.
        environment: variables in addition to those of this process.
        chapters: the numbers of the notebooks that the command executes.
    """

    name: str
    limit_s: float
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    chapters: tuple[str, ...] = ()


def chapter_part(name: str, limit_s: float, out: Path, preset: str, *chapters: str, **parameters: str) -> Part:
    """A part that executes chapters, one at a time."""
    command = [*COURSE, "run", *chapters, "--preset", preset, "--jobs", "1", "--out", str(out / "chapters" / name)]
    for parameter, value in parameters.items():
        command += ["-p", parameter, value]
    return Part(name, limit_s, command, FEW_YEARS, chapters)


def one_gpu(out: Path, preset: str) -> list[Part]:
    """The parts of ``make gpu``, the most valuable ones first."""
    tests = [PYTHON, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    tests += ["tests/gpu", "tests/unit/test_loaders.py"]
    measure = [*MEASURE, "--preset", preset, "--out", str(out / "measured")]
    return [
        Part("tests", 120, tests),
        Part("data", 90, [*COURSE, "data", "weather", "--preset", preset], FEW_YEARS),
        chapter_part("graphs", 90, out, preset, "06", "06-further"),
        Part("traces", 30, [*measure, "traces"], FEW_YEARS),
        chapter_part("memory", 60, out, preset, "16"),
        chapter_part("precision", 60, out, preset, "04"),
        Part("loader", 60, [*measure, "loader"], FEW_YEARS),
        Part("collectives", 20, [*measure, "collectives"]),
        chapter_part("profile", 60, out, preset, "02"),
        chapter_part("ladder", 300, out, preset, "07", rounds="1"),
    ]


def several_gpus(out: Path, preset: str) -> list[Part]:
    """The parts of ``make gpus``."""
    measure = [*MEASURE, "--preset", preset, "--out", str(out / "measured")]
    ranks = str(max(2, machine.n_devices()))
    parts = [Part("collectives", 60, [*measure, "collectives", "--ranks", ranks])]
    for chapter in ("08", "09", "11", "17", "18", "19"):
        parts.append(chapter_part(f"chapter-{chapter}", 300, out, preset, chapter))
    return parts


def dry_run(parts: list[Part], out: Path) -> list[Part]:
    """The same parts with more time, but only one chapter. It is a short one that runs on every machine."""
    short = [dataclasses.replace(part, limit_s=240) for part in parts if not part.chapters]
    return [*short, chapter_part("chapter", 240, out, "smoke", "00")]


def run(part: Part, limit_s: float, out: Path) -> dict[str, object]:
    """Run a part, and end it with all its processes after ``limit_s`` seconds.

    Returns:
        Its name, its command, its exit status (None after the limit), its seconds and the end of its output.
    """
    # Programs in a notebook are started as ``python``. They must find the Python that runs this file.
    search_path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **part.environment, "PATH": search_path}
    log = out / f"{part.name}.log"
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGINT)  # ``dltutorial run`` ends its kernels after Ctrl-C
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    command = " ".join(part.command).replace(PYTHON, "python").replace(f"{ROOT}/", "").replace(str(out), "OUT")
    variables = "".join(f"{name}={value} " for name, value in part.environment.items())
    return {
        "part": part.name,
        "command": variables + command,
        "status": status,
        "limit_s": round(limit_s),
        "seconds": round(time.monotonic() - start, 1),
        "end_of_output": log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:],
    }


def chapter_results(part: Part, out: Path) -> dict[str, object]:
    """What the chapters of a part claimed and measured: their claims, measurements and predictions, as recorded."""
    lines = records.read(out / "chapters" / part.name / "records")
    keys = ("chapter", "kind", "what", "status", "value", "unit", "evidence", "needs", "expected", "guess", "model")
    known = {"time", "preset", "machine", "versions", "question", "touched", "model_ratio", "measured"}
    rows = []
    for line in lines:
        row = {key: line[key] for key in keys if line.get(key) not in (None, "")}
        row |= {key: value for key, value in line.items() if key not in {*keys, *known}}
        rows.append(row)
    return {"chapters": part.chapters, "rows": rows}


def about(what: str, command: str, preset: str) -> dict[str, object]:
    """What a recording says of itself."""
    return {
        "what": what,
        "command": command,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "preset": preset,
        "machine": machine.label(),
        "versions": machine.versions(),
    }


def main() -> int:
    """Run all parts. The exit status is 1 if a part failed or reached its limit."""
    parser = argparse.ArgumentParser(description="Run what the course shows on a GPU, and record the results.")
    parser.add_argument("--several", action="store_true", help="the chapters for several GPUs")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help="only these parts")
    parser.add_argument("--minutes", type=float, default=12, help="end of the run (default: after 12 minutes)")
    parser.add_argument("--out", type=Path, help="a new folder (default: runs/gpu-<time>)")
    args = parser.parse_args()
    if machine.device() == "cpu" and not args.dry_run:
        print("PyTorch finds no GPU here, so nothing can be recorded; try the run with --dry-run", file=sys.stderr)
        return 2
    preset = "smoke" if args.dry_run else "gpu"
    out = (args.out or paths.runs_dir() / f"gpu-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    (out / "measured").mkdir(parents=True)
    parts = several_gpus(out, preset) if args.several else one_gpu(out, preset)
    if args.dry_run:
        parts = dry_run(parts, out)
    results = []
    end = time.monotonic() + 60 * args.minutes
    for part in parts:
        if args.only and part.name not in args.only:
            continue
        limit_s = min(part.limit_s, max(0, end - time.monotonic()))
        result = run(part, limit_s, out)
        results.append(result)
        state = {0: "finished", None: "reached its limit"}.get(result["status"], "failed")
        print(f"{part.name:12} {state:18} {result['seconds']:6.1f} s", flush=True)
        if result["status"] != 0:
            print("    " + "\n    ".join(result["end_of_output"]), flush=True)
        summary = about("parts", "make gpus" if args.several else "make gpu", preset) | {"parts": results}
        paths.write_text(out / "measured" / "parts.json", json.dumps(summary, indent=1) + "\n")
        if part.chapters:
            recording = about(part.name, result["command"], preset) | chapter_results(part, out)
            paths.write_text(out / "measured" / f"{part.name}.json", json.dumps(recording, indent=1) + "\n")
    print(f"the results are in {out}")
    return int(any(result["status"] != 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())
