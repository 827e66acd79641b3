"""The folder of one training run, and what is written there during training.

Input: the options of the run, the losses, the scores.
Output: a new folder ``runs/<name>-<time>`` with these files

    config.json        the options
    metrics.jsonl      one line per step: step, loss, samples_per_s; one line per validation: step, valid/rmse_ratio
    checkpoints/       the two newest checkpoints, written by ``checkpoint.py``
    weights.pt         the weights at the end of the run, written by ``checkpoint.py``
    tensorboard/, wandb/    the same metrics, for TensorBoard and Weights & Biases

No run writes into the folder of another run. If a run was killed, the resumed run repeats the steps after the last
checkpoint and writes their lines again. On CPUs the losses of both lines are equal.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.record.track import Tracker


def create_run(options: argparse.Namespace) -> Path:
    """Make a new folder for a run, with ``config.json``. Return its path."""
    name = f"{options.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = paths.runs_dir() / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    config = {option: value for option, value in vars(options).items() if option != "resume"}
    paths.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return folder


def read_config(run: str) -> dict[str, Any]:
    """Read the options of a run.

    Raises:
        CourseError: The folder is not that of a run.
    """
    file = Path(run) / "config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CourseError(f"{file} cannot be read ({error}); give --resume the folder of a run") from error


class RunLog:
    """Write losses and scores to ``metrics.jsonl``, TensorBoard or W&B, and the terminal, inside a ``with`` block."""

    def __init__(self, run: Path, options: argparse.Namespace, step: int, is_writer: bool) -> None:
        """Start the clock, and open the files.

        Args:
            run: The folder of the run.
            options: The options of the run.
            step: The number of steps that are already done.
            is_writer: Whether this rank writes. The other ranks only check the losses.
        """
        self._batch_size = options.global_batch_size
        self._is_writer = is_writer
        if is_writer:
            print(f"run: {run}, step {step} of {options.steps}", flush=True)
            self._metrics = open(run / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)
            self._tracker = Tracker(options.track, run, vars(options), first_step=step + 1)
        self.restart_clock()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_writer:
            self._metrics.close()
            self._tracker.close()

    def restart_clock(self) -> None:
        """Begin to measure the training time of the next steps."""
        self._start_s = time.perf_counter()

    def write_losses(self, step: int, losses_N: Tensor) -> None:
        """Write one line for each of the last N steps, the last of them is ``step``.

        Raises:
            CourseError: A loss is not finite. All ranks have the same losses, so all of them raise.
        """
        samples_per_s = len(losses_N) * self._batch_size / (time.perf_counter() - self._start_s)
        if not losses_N.isfinite().all():
            raise CourseError(
                f"the loss is not finite after {step} steps; lower --learning-rate, or check the data for NaN with "
                "dltutorial data check"
            )
        first_step = step - len(losses_N) + 1
        for number, loss in enumerate(losses_N.tolist(), start=first_step):
            self._write({"step": number, "loss": loss, "samples_per_s": round(samples_per_s, 2)})
        self.say(f"step {step}: loss {losses_N[-1]:.4f}, {samples_per_s:.1f} samples/s")

    def write_score(self, step: int, rmse_ratio: float) -> None:
        """Write a line with the score of a validation."""
        self._write({"step": step, "valid/rmse_ratio": rmse_ratio})
        self.say(f"step {step}: validation RMSE {rmse_ratio:.3f} × persistence")

    def _write(self, record: dict[str, float]) -> None:
        if self._is_writer:
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()
            self._tracker.log(int(record["step"]), {name: x for name, x in record.items() if name != "step"})

    def say(self, line: str) -> None:
        """Print a line, on the rank that writes."""
        if self._is_writer:
            print(line, flush=True)
