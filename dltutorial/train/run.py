"""One whole training run, from a recipe and a data folder to a folder that holds everything about it.

``recipe.json`` every knob · ``progress.jsonl`` what the loop yielded · ``tensorboard/``, ``wandb/`` the trackers ·
``checkpoints/`` what it can go on from · ``weights.pt`` the model · ``status.json`` running, finished, interrupted or
failed, and the final scores.
"""

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm

from dltutorial import machine, node, paths
from dltutorial.config import Recipe
from dltutorial.data import loaders, store
from dltutorial.data.loaders import LOADERS, Pairs, endless_batches
from dltutorial.data.workers import workers_in_one_line
from dltutorial.errors import CheckpointError, CourseError, DataError, DivergedError, Interrupted, RecipeError
from dltutorial.models.vit import ViT
from dltutorial.record import track
from dltutorial.train import resume as resuming
from dltutorial.train.evaluate import evaluate
from dltutorial.train.loop import Progress, loop
from dltutorial.train.optim import make_optimizer
from dltutorial.train.step import make_step
from dltutorial.train.team import ALONE, Team, check


def build_model(recipe: Recipe) -> ViT:
    """The recipe's model with its seeded initial weights, on the recipe's device.

    Raises:
        CourseError: the recipe asks for cuda and there is none.
    """
    device = machine.device() if recipe.device == "auto" else recipe.device
    if device == "cuda" and not torch.cuda.is_available():
        raise CourseError("device cuda was asked for, but torch sees no CUDA device here; use device=auto")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return ViT(recipe).to(device)


def load(
    split: store.Split,
    recipe: Recipe,
    device: str | torch.device = "cpu",
    skip: int = 0,
    team: Team = ALONE,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (x_BCHW, y_BCHW) for ever, from the recipe's loader; for one seed all loaders give the same batches.

    The first ``skip`` are left out: a resumed run has seen them. A rank of a team gets its part of each.

    Raises:
        DataError: fewer pairs than one batch takes.
    """
    knobs = {"seed": recipe.seed, "roll": recipe.roll, "skip": skip}
    knobs |= {"rank": team.rank, "world_size": team.world_size}
    if recipe.loader == "plain":
        return endless_batches(Pairs(split), recipe.global_batch_size, workers=recipe.workers, **knobs)
    config = dataclasses.replace(LOADERS[recipe.loader], workers=recipe.workers)
    return loaders.make_loader(split, recipe.global_batch_size, config, device=device, **knobs)


def check_data(recipe: Recipe, split: store.Split) -> None:
    """A recipe and a data set must agree on the shape of a sample.

    Raises:
        RecipeError: they do not.
    """
    wanted = (recipe.n_channels, recipe.n_lat, recipe.n_lon)
    if tuple(split.shape) != wanted:
        raise RecipeError(
            f"recipe expects samples of (channels, lat, lon) {wanted}, the data have {tuple(split.shape)}; "
            "set n_channels, n_lat and n_lon, or choose other data"
        )


def train(
    recipe: Recipe,
    data: Path,
    folder: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    asked_to_end: Callable[[], bool] = lambda: False,
    team: Team = ALONE,
) -> Iterator[Progress]:
    """Train as the recipe says, yielding each record after it was written.

    Of several ranks each calls this with the same arguments, and gets the same records; rank 0 writes the folder.

    Args:
        recipe: the knobs.
        data: a data set's folder.
        folder: of the run.
        overwrite: replace a run that is there.
        resume: go on with a run that is there, from its newest whole checkpoint. On the same kind of processor, with
            as many threads, it ends with the very weights of a run that was never stopped. A finished run yields
            nothing.
        progress: show a bar.
        asked_to_end: looked at after each update; once true, the run ends with a checkpoint.
        team: the ranks that train this model together; default: this one alone.

    Raises:
        Interrupted: the run was asked to end.
        CheckpointError: a checkpoint cannot be written, or the run to resume has another recipe.
        CourseError: the folder holds a run already, the data do not fit or hold NaN, a loading
            process died, the loss diverged, or this is a login node.
    """
    node.refuse_on_login("training")
    check(recipe, team)
    split = store.open_split(data, "train")
    check_data(recipe, split)
    valid = Pairs(store.open_split(data, "valid"))
    if len(valid) == 0:
        raise DataError(f"{Path(data) / 'valid'} has no two snapshots in a row to forecast; make or fetch it anew")
    machine.use_cores()
    model = build_model(recipe)
    make_step(model, make_optimizer(model, recipe), recipe)  # refuses what cannot be here, before there is a folder
    if resume and team.tell(run_status(folder)) == "finished":
        resuming.check_same(vars(Recipe.load(folder / "recipe.json")), recipe, folder)
        return
    same_data = resuming.fingerprint(split)
    _check_alike(recipe, same_data, team)
    team.share(model)
    begun = resuming.begin_together(folder, recipe, same_data, team) if resume else None
    done = begun.step if begun else 0
    batches = load(split, recipe, next(model.parameters()).device, begun.global_batches if begun else 0, team)
    keeper = resuming.Keeper(folder, recipe, asked_to_end, same_data, team)
    records = loop(
        model,
        batches,
        recipe,
        lambda model: evaluate(model, valid, team=team).scalars(),
        begun=begun,
        keeper=keeper,
        team=team,
    )
    records = _blaming(data, _in_order(records, asked_to_end), progress, team)
    if not team.leads:
        yield from records
        return
    _start(folder, recipe, overwrite, resume)
    state: dict = {"status": "failed", "scores": begun.scores if begun else {}}
    with contextlib.ExitStack() as ending:
        ending.callback(lambda: paths.write_text(folder / "status.json", json.dumps(state) + "\n"))
        ending.enter_context(workers_in_one_line())
        try:
            tracker = track.tracker(recipe.track, folder, dataclasses.asdict(recipe), done)
            ending.callback(tracker.close)
            bar = tqdm(total=recipe.steps, initial=done, desc="training", unit="step", disable=not progress)
            ending.enter_context(bar)
            for seen in records:
                _append(folder / "progress.jsonl", dataclasses.asdict(seen))
                scalars = {"train/loss": seen.loss, "train/learning_rate": seen.learning_rate} | seen.scores
                tracker.log(seen.step, scalars | {"train/samples_per_s": seen.samples_per_s})
                bar.set_postfix(loss=f"{seen.loss:.4f}", refresh=False)
                bar.update(seen.step - bar.n)
                state["scores"] = seen.scores or state["scores"]
                yield seen
            _save_weights(model, folder / "weights.pt")
            state["status"] = "finished"
        except (KeyboardInterrupt, GeneratorExit, Interrupted):
            state["status"] = "interrupted"
            raise


def _check_alike(recipe: Recipe, data: str, team: Team) -> None:
    """All ranks must train the same model on the same data; where they were started differs.

    Raises:
        CourseError: a rank was told something else than rank 0.
    """
    told = team.tell({**vars(recipe), "data": data})
    differ = [name for name, value in told.items() if value != {**vars(recipe), "data": data}[name]]
    if differ:
        raise CourseError(f"rank {team.rank} has another {', '.join(differ)} than rank 0; start all ranks alike")


def _in_order(records: Iterator[Progress], asked_to_end: Callable[[], bool]) -> Iterator[Progress]:
    """Pass records on. A signal that asks the run to end may end its loading processes first, in the midst of a step.

    Raises:
        Interrupted: it did.
    """
    try:
        with workers_in_one_line():
            yield from records
    except DataError:
        if not asked_to_end():
            raise
        raise Interrupted("asked to end, and a loading process ended first; go on with --resume") from None


def _blaming(data: Path, records: Iterator[Progress], progress: bool, team: Team) -> Iterator[Progress]:
    """Pass records on; if they stop being numbers, look through the data first: opening them checks a few samples only.

    Raises:
        CourseError: the data hold NaN, or the loss or the scores are not finite without it.
    """
    try:
        for seen in records:
            if not all(map(math.isfinite, seen.scores.values())):
                raise DivergedError(
                    f"the scores are not finite after {seen.step} updates; lower learning_rate, "
                    "or leave out channels that never change"
                )
            yield seen
    except (Interrupted, CheckpointError):  # none of the data's doing
        raise
    except DivergedError:  # on all ranks at once: one of them looks
        try:
            if team.leads:
                store.validate(data, progress)
        finally:
            team.wait()
        raise
    except CourseError:
        store.validate(data, progress and team.leads)
        raise


def load_model(folder: Path) -> ViT:
    """The trained model of a finished run, on the CPU.

    Raises:
        CourseError: the run is not finished, or its weights are not whole.
    """
    if run_status(folder) != "finished":
        raise CourseError(f"the run {folder} is {run_status(folder)}, not finished; train it again")
    model = ViT(Recipe.load(folder / "recipe.json"))
    try:
        model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True, map_location="cpu"))
    except Exception as error:  # torch names no common base for what a damaged file can raise
        raise CourseError(f"{folder / 'weights.pt'} cannot be read ({type(error).__name__}); train again") from error
    return model


def run_status(folder: Path) -> str:
    """``finished``, ``interrupted``, ``failed``, ``running`` (or killed while running), or ``missing``."""
    try:
        return json.loads((folder / "status.json").read_text())["status"]
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (ValueError, KeyError, TypeError):
        return "damaged"


def check_folder(folder: Path, overwrite: bool) -> None:
    """A new run takes a new folder, or replaces an older run when that was asked for.

    Raises:
        CourseError: the folder is taken.
    """
    if folder.exists() and not folder.is_dir():
        raise CourseError(f"{folder} is a file, not a training run; choose another run name")
    if folder.exists() and any(folder.iterdir()):
        if not overwrite:
            raise CourseError(f"{folder} holds a run already; choose another run name, or --overwrite it")
        if run_status(folder) == "missing":
            raise CourseError(f"{folder} is not a training run, so it is not overwritten; choose another run name")


def _start(folder: Path, recipe: Recipe, overwrite: bool, resume: bool) -> None:
    """Make the run's folder, or take the one that is to be resumed."""
    if not resume:
        check_folder(folder, overwrite)
        if folder.exists():
            shutil.rmtree(folder)
    recipe.save(folder / "recipe.json")
    paths.write_text(folder / "status.json", json.dumps({"status": "running"}) + "\n")


def _append(file: Path, record: dict) -> None:
    try:
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
    except OSError as error:
        raise CourseError(f"cannot write {file}: {error.strerror}; make room, then train again") from error


def _save_weights(model: ViT, file: Path) -> None:
    try:
        with paths.atomic(file) as temporary:
            torch.save(model.state_dict(), temporary)
    except (OSError, RuntimeError) as error:  # torch's ways to say that the disk is full
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CourseError(f"cannot write {file}: {why}; make room, then train again") from error
