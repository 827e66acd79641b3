"""One whole training run, from a task and a recipe to a folder that holds everything about it (``run_folder``).

It runs alone or on any number of ranks, each of which calls ``train`` with the same arguments.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dltutorial import machine, node
from dltutorial.data.workers import workers_in_one_line
from dltutorial.engine import checkpoint, run_folder, run_lock
from dltutorial.engine.distributed import all_or_none, barrier, broadcast_object, is_main, rank, world_size
from dltutorial.engine.loop import Progress, TrainState, loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.run_folder import CHECKPOINTS, run_log, save_weights
from dltutorial.engine.task import Task
from dltutorial.errors import CourseError, DivergedError, RecipeError


def train(
    task: Task, recipe: Recipe, folder: Path, *, overwrite: bool = False, resume: bool = False, progress: bool = True,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:  # fmt: skip
    """Train as the recipe says, yielding each record after it was written.

    Of several ranks each gets the same records; rank 0 writes the folder.

    Args:
        task: what is trained.
        recipe: the knobs.
        folder: of the run.
        overwrite: replace a run that is there.
        resume: go on with a run that is there, from its newest whole checkpoint. On the same kind of processor, with
            as many threads, it ends with the very weights of a run that was never stopped; on more than two ranks
            they are equal up to rounding. A finished run yields nothing.
        progress: show a bar.
        asked_to_end: looked at after each update; once true, the run ends with a checkpoint.

    Raises:
        Interrupted: the run was asked to end.
        CheckpointError: a checkpoint cannot be written, or the run to resume has another recipe.
        CourseError: the folder holds a run already, the data hold NaN, a loading process died, the loss diverged,
            or this is a login node.
    """
    node.refuse_on_login("training")
    machine.use_cores()
    mine = {**vars(recipe), "data": task.data_id, "run name": folder.name}
    of_main = broadcast_object(mine)
    with all_or_none():
        if differ := [name for name, value in of_main.items() if value != mine[name]]:
            raise CourseError(f"rank {rank()} has another {', '.join(differ)} than rank 0; start all ranks alike")
        check_ranks(recipe, world_size())
    with all_or_none():
        finished = resume and is_main() and run_folder.is_finished(folder, recipe, task.data_id)
    if broadcast_object(finished):
        return
    state = TrainState(task, recipe)  # refuses what cannot be here, before there is a folder
    begun, log = None, lambda seen: None  # of all ranks but the first
    look = partial(run_lock.check, folder, None if is_main() else {})

    def save(state: TrainState) -> None:
        taken = checkpoint.take(state, recipe, task.data_id)
        if is_main():
            look()
            checkpoint.sync(folder / "progress.jsonl")  # no record may be younger than the checkpoint after it
        checkpoint.save(taken, folder / CHECKPOINTS, look)
        if is_main():
            run_folder.let_go(folder)
        barrier()  # nobody ends before it is there

    try:
        with contextlib.ExitStack() as ending, workers_in_one_line():
            with all_or_none():
                if is_main():
                    ending.enter_context(run_lock.owned(folder))
                    finished = resume and run_folder.is_finished(folder, recipe, task.data_id, mine=True)  # meanwhile
                    begun = run_folder.to_go_on_from(folder, recipe, task.data_id, overwrite, resume)
            begun, finished = broadcast_object((begun, finished))  # only rank 0 has to see the folder
            if finished:
                return
            with all_or_none():
                if begun:
                    checkpoint.restore(begun, state)
            with all_or_none():
                if is_main():
                    with run_folder.begin(folder, recipe, begun, resume):
                        log = ending.enter_context(run_log(folder, recipe, task.data_id, begun, progress))
                    ending.callback(run_folder.tell_kept, folder)
            look()  # each rank notes which folder it is
            for seen in loop(task, recipe, state, save=save, asked_to_end=asked_to_end):
                log(seen)
                yield seen
            weights = state.mesh.weights()
            if is_main():
                save_weights(weights, folder)
                run_folder.let_go(folder)
    except DivergedError:  # on all ranks at once; opening the data has checked a few samples only
        with all_or_none():
            if is_main():
                task.check_data()
            raise


def check_ranks(recipe: Recipe, n: int) -> None:
    """Refuse what so many ranks cannot share, or has no room here. RecipeError: naming the knob and what it may be."""
    together, mesh = recipe.ranks_per_sample, f"tensor={recipe.tensor}, context={recipe.context}"
    if recipe.task != "weather":
        for name in ("tensor", "pipeline", "context")[: 2 if recipe.task == "cosmology" else 3]:
            recipe.require(getattr(recipe, name) == 1, name, f"must be 1: task={recipe.task} cannot be cut so")
    if recipe.pipeline > 1:
        mesh += f", pipeline={recipe.pipeline}"
    if n % together:
        raise RecipeError(f"{mesh} take a multiple of {together} ranks, there are {n}; start as many, or lower them")
    if recipe.heads % recipe.tensor:
        raise RecipeError(f"tensor={recipe.tensor} does not divide heads={recipe.heads}; take a number that does")
    if recipe.context > recipe.n_tokens and recipe.task == "weather":
        raise RecipeError(f"context={recipe.context} ranks for {recipe.n_tokens} tokens; take fewer ranks")
    if recipe.pipeline > recipe.depth:
        raise RecipeError(f"pipeline={recipe.pipeline} stages for depth={recipe.depth} blocks; take fewer stages")
    shares = n // together
    if recipe.global_batch_size % shares:
        lower = recipe.global_batch_size // shares * shares
        who = f"{shares} ranks" if together == 1 else f"{shares} groups of ranks ({mesh})"
        todo = f"take {f'{lower} or ' if lower else ''}{lower + shares}, or start another number of ranks"
        raise RecipeError(f"global_batch_size={recipe.global_batch_size} cannot be shared equally by {who}; {todo}")
    samples = recipe.global_batch_size // shares
    if recipe.pipeline > 1 and (recipe.accumulate < recipe.pipeline or samples % recipe.accumulate):
        least = f"at least {recipe.pipeline}, one for each stage, that divides the {samples} samples of a rank"
        raise RecipeError(f"accumulate={recipe.accumulate} parts of a batch do not fill a pipeline; take {least}")
    if n > 1 and recipe.cuda_graph:
        raise RecipeError("cuda_graph works on one rank only; set cuda_graph=False, or start one rank")
    if n > 1 and recipe.compile in ("reduce-overhead", "max-autotune"):
        raise RecipeError(f"compile={recipe.compile} works on one rank only; take compile=default, or start one rank")
    if n > 1 and recipe.compile != "off" and recipe.ddp != "torch":
        raise RecipeError(f"compile={recipe.compile} works with torch's DDP only; set ddp=torch, or compile=off")
    recipe.require_room(n)
    if recipe.gradient_lag:
        alone = {"shard": "none", "tensor": 1, "context": 1, "pipeline": 1, "ddp": "torch", "cuda_graph": False}
        unfit = [name for name, value in alone.items() if getattr(recipe, name) != value]
        unfit += ["precision"] * (recipe.precision == "fp16")
        if unfit:
            named = ", ".join(f"{name}={getattr(recipe, name)}" for name in unfit)
            raise RecipeError(f"gradient_lag=1 does not work with {named}; leave {' and '.join(unfit)} out")
    works: dict[str, tuple[str, ...]] = {}
    if n > 1 and (together > 1 or recipe.shard != "none"):
        works = {"ddp": ("torch",), "compile": ("off",)}
    if n > 1 and (recipe.tensor > 1 or recipe.shard in ("gradients", "full")):  # a rank has pieces of a layer
        works |= {"precision": ("fp32", "tf32", "bf16"), "optimizer": ("adamw", "sgd")}
    elif recipe.pipeline > 1:  # and nobody knows of another one's overflow
        works |= {"precision": ("fp32", "tf32", "bf16")}
    for name, values in works.items():
        if (value := getattr(recipe, name)) not in values:
            others = f"{mesh}, shard={recipe.shard}; take {' or '.join(values)}, or another mesh"
            raise RecipeError(f"{name}={value} does not work with {others}")
