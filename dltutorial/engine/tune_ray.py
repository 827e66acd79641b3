"""``dltutorial tune --engine ray``: the trials of a search as tasks of Ray Tune, which one process leads.

In: a search. Out: in its folder ``ray/`` (Ray's own), a run's folder for each trial, and ``trials.csv``. Ray runs where
``RAY_ADDRESS`` says, a cluster that ``slurm/tune_ray.sbatch`` starts inside a job; else on this machine alone. A trial
ends at each rung with a checkpoint, and is resumed: a worker that dies costs what came after the last rung, and
population-based training (Jaderberg et al. 2017, arXiv:1711.09846) goes on from the checkpoint of a better trial.
"""

import contextlib
import logging
import math
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch

from dltutorial import machine
from dltutorial.engine import checkpoint, run
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.run_folder import CHECKPOINTS
from dltutorial.engine.tune import ADVICE, ETA, Knob, Search, in_words
from dltutorial.errors import CourseError, DivergedError, Interrupted

ENDED = "asked to end; what has ended is kept, take another --name to begin anew"
_TRIES = 3  # of a trial whose worker dies


def lead(search: Search, scheduler: str) -> None:
    """Give out trials until all have ended, then print the best.

    Raises:
        CourseError: Ray is not installed or cannot start, the study is there already, or no trial came to its end.
    """
    kinds: dict[str, Any] = {name: field.type for name, field in Recipe.knobs().items()}
    if scheduler == "pbt" and (fast := [n for n in search.space if kinds[n] is not float or search.space[n].values]):
        raise CourseError(f"pbt changes a knob in the midst of a training: {fast[0]} must be a range of a real number")
    with _begun(search.folder), _ray() as tune:
        from ray.exceptions import RayActorError

        space = {name: _domain(tune, knob, kinds[name]) for name, knob in search.space.items()}
        each = {"cpu": 1, "gpu": int(torch.cuda.is_available())}
        trial = tune.with_resources(tune.with_parameters(_trial, search=search), each)
        tries = tune.FailureConfig(max_failures=_TRIES)
        kept = tune.RunConfig(
            name="ray", storage_path=str(search.folder), failure_config=tries, verbose=0,
            stop={"rung": ETA**2},  # no population changes one that has ended
        )  # fmt: skip
        config = tune.TuneConfig(
            metric="score", mode="min", num_samples=search.trials, reuse_actors=True,
            scheduler=_scheduler(scheduler, space),
        )  # fmt: skip
        found = tune.Tuner(trial, param_space=space, tune_config=config, run_config=kept).fit()
        if any(isinstance(error, RayActorError) for error in found.errors):  # of a worker that died while it started
            found = tune.Tuner.restore(str(search.folder / "ray"), trial, resume_errored=True, param_space=space).fit()
        found.get_dataframe().to_csv(search.folder / "trials.csv", index=False)
        _say_best(found)


@contextlib.contextmanager
def _begun(folder: Path) -> Iterator[None]:
    """Take a study's folder, before Ray takes its time to start; it goes again if nothing comes into it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise CourseError(f"{folder} is there already; Ray begins anew: take another --name") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it holds something
            folder.rmdir()


def _say_best(found: Any) -> None:
    for result in found:
        metrics = result.metrics or {}
        told = f"{metrics.get('score', math.nan):.4f} at {metrics.get('rung', 0)}/{ETA**2}"
        told = "failed" if result.error else told
        print(f"trial {metrics.get('trial_id')}: {told} · {in_words(metrics.get('config', {}))}")
    ended = [r for r in found if not r.error and r.metrics and r.metrics.get("rung") == ETA**2]
    ended = [r for r in ended if math.isfinite(r.metrics["score"])]
    print(f"{len(found)} trials, {len(ended)} to the end, {len(found.errors)} failed")
    if not ended:
        why = str(found.errors[0]).strip().splitlines()[-1] if found.errors else "all diverged"
        raise CourseError(f"no trial came to its end: {why}; let --knob name other values, under another --name")
    best = min(ended, key=lambda result: result.metrics["score"])
    print(f"best: {best.metrics['score']:.4f}, trial {best.metrics['trial_id']} · {in_words(best.config)}\n{ADVICE}")


def _trial(chosen: dict, search: Search) -> None:
    """What a worker runs: from rung to rung, each reported with the checkpoint that it goes on from."""
    from ray import tune

    recipe, rungs = search.recipe(chosen)
    name = f"trial-{tune.get_context().get_trial_id()}"
    places = (search.folder / (f"{name}-{n}" if n else name) for n in count())
    place = next(folder for folder in places if not folder.exists())  # one that was killed, or went on, has its own
    if given := tune.get_checkpoint():
        with given.as_directory() as folder:
            _go_on_from(Path(folder), recipe, place)
    reached: list[tuple[int, float]] = []  # (rung, score) of this part
    while not reached or reached[-1][0] < ETA**2:
        reached.clear()
        seen = run.train(
            search.case.make_task(recipe, search.data), recipe, place,
            resume=place.exists(), progress=False, asked_to_end=lambda: bool(reached),
        )  # fmt: skip
        try:
            for record in seen:
                if record.scores and record.step in rungs:
                    reached.append((rungs[record.step], record.scores[search.case.SCORE]))
        except Interrupted:
            pass
        except DivergedError:
            reached.append((ETA**2, math.inf))
        rung, score = reached[-1]
        kept = None if rung == ETA**2 else tune.Checkpoint.from_directory(str(place / CHECKPOINTS))
        tune.report({"score": score, "rung": rung}, checkpoint=kept)


def _go_on_from(folder: Path, recipe: Recipe, place: Path) -> None:
    """A run that begins with another one's weights and averages, and has its own knobs from there on."""
    if found := checkpoint.newest(folder):
        checkpoint.save(replace(found, recipe=dict(vars(recipe))), place / CHECKPOINTS)
        recipe.save(place / "recipe.json")


def _domain(tune: Any, knob: Knob, kind: type) -> Any:
    if knob.values:
        return tune.choice(list(knob.values))
    if kind is int:
        return (tune.lograndint if knob.log else tune.randint)(int(knob.least), int(knob.most) + 1)
    return (tune.loguniform if knob.log else tune.uniform)(knob.least, knob.most)


def _scheduler(name: str, space: dict) -> Any:
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining

    if name == "asha":
        return ASHAScheduler(time_attr="rung", grace_period=1, max_t=ETA**2, reduction_factor=ETA)
    if name == "pbt":
        return PopulationBasedTraining(time_attr="rung", perturbation_interval=1, hyperparam_mutations=space)
    return FIFOScheduler()


@contextlib.contextmanager
def _ray() -> Iterator[Any]:
    """Ray's module ``tune``, connected to a cluster; what was started here ends with ``with``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "120")  # of 2 s: a busy machine starts Ray slowly
    if not os.environ.get("RAY_ADDRESS"):  # Ray reads them when it is imported
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
        from ray import tune
    except ImportError as error:
        why = f"--engine ray needs Ray ({error}): .venv/bin/pip install -e '.[tune]'"
        raise CourseError(f"{why}; or leave --engine out") from error
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    own = Path(tempfile.mkdtemp(prefix="ray-")) if not os.environ.get("RAY_ADDRESS") else None
    if own:
        cores = machine.rank_cores()
        print("Ray's processes listen on this machine's addresses until it ends; a token guards them", file=sys.stderr)
        how |= {"address": "local", "num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        how |= {"_temp_dir": str(own), "object_store_memory": 100 * 2**20}

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted(ENDED)

    try:
        signal.signal(signal.SIGTERM, end)
        try:
            ray.init(**how)
        except Interrupted:
            raise
        except Exception as error:  # of a dozen kinds
            why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise CourseError(f"Ray does not start on {where}: {why}; look with `ray status`") from error
        signal.signal(signal.SIGTERM, end)  # Ray has set its own
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # a trial that is tried again is no news of fifty lines
        yield tune
    except (SystemExit, SystemError) as error:  # Ray's answers to SIGTERM: while it has its own, and from within
        if isinstance(error, SystemError) and not isinstance(error.__cause__, Interrupted):
            raise
        raise Interrupted(ENDED) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ray.shutdown()
        if own:
            for process in psutil.Process().children(recursive=True):  # of a start that did not come to its end
                with contextlib.suppress(psutil.Error):
                    process.kill()
            shutil.rmtree(own, ignore_errors=True)
