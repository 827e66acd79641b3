"""The options of ``dltutorial train``.

Input: the command line, and for a run to resume its ``config.json``. Output: a namespace with one attribute per option.
The preset decides what neither of them sets.
"""

import argparse
from collections.abc import Sequence

from dltutorial import config, paths
from dltutorial.command_line import Parser
from dltutorial.errors import CourseError
from dltutorial.record.run_log import read_config


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line. Where the default is None, the preset decides."""
    parser = Parser(prog="dltutorial train", description="Train the weather model, alone or on many ranks.")
    add = parser.add_argument
    add("--preset", default="auto", help=f"{', '.join(config.PRESETS)}, or auto: what fits this machine")
    add("--data", metavar="DIR", help="a data set of your own; default: the simulated weather of the preset")
    add("--name", default="train", help="the name of the run's folder begins with it")
    add("--resume", metavar="RUN", help="continue the run in this folder, such as runs/train-20260131-120000")
    add("--steps", type=int, metavar="N", help="updates of the weights")
    add("--global-batch-size", type=int, metavar="N", help="samples of one update, over all ranks")
    add("--learning-rate", type=float, metavar="X", help="the peak of the schedule")
    add("--warmup-steps", type=int, metavar="N", help="steps until the peak; default: a tenth of all steps")
    add("--precision", choices=["fp32", "tf32", "bf16"], default="fp32", help="of the matrix products")
    add("--compile", action="store_true", help="compile the blocks of the model")
    add("--workers", type=int, default=0, metavar="N", help="processes of each rank that load data")
    add("--shard", choices=["none", "full"], default="none", help="none: DDP; full: fully_shard")
    add("--tensor", type=int, default=1, metavar="N", help="ranks that share each layer")
    add("--accumulate", type=int, default=1, metavar="N", help="micro-batches of one update")
    add("--checkpoint-activations", action="store_true", help="recompute activations in the backward pass")
    add("--checkpoint-every", type=int, default=0, metavar="N", help="steps; default: only after a signal")
    add("--track", nargs="*", choices=["tensorboard", "wandb"], default=["tensorboard"])
    add("--seed", type=int, default=0, help="of the initial weights and of the order of the samples")
    return parser


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a run to resume keeps the options in its ``config.json``.

    Raises:
        CourseError: A value is not possible, or an option differs from that of the run to resume.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    saved = {}
    if options.resume:
        saved = read_config(options.resume)
        parser.set_defaults(**saved)
        options = parser.parse_args(arguments)  # now an option that is not given has the saved value
    preset = config.preset(options.preset)
    options.preset = preset.name
    for name, value in saved.items():
        if getattr(options, name) != value:
            raise CourseError(
                f"--{name.replace('_', '-')} {getattr(options, name)} differs from {value} in {options.resume}; "
                "leave the option out to resume, or start a new run without --resume"
            )
    for name in ("steps", "global_batch_size", "learning_rate"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(preset, name))
    if options.warmup_steps is None:
        options.warmup_steps = options.steps // 10
    return options


def check_options(options: argparse.Namespace, world_size: int) -> None:
    """Raise a CourseError if these options do not fit together on so many ranks."""
    paths.inside(paths.runs_dir(), options.name)
    heads = config.PRESETS[options.preset].heads
    if min(options.steps, options.global_batch_size, options.accumulate, options.tensor) < 1:
        raise CourseError("--steps, --global-batch-size, --accumulate and --tensor must be at least 1")
    if world_size % options.tensor or heads % options.tensor:
        raise CourseError(f"--tensor {options.tensor} must divide the {world_size} ranks and the {heads} heads")
    data_ranks = world_size // options.tensor
    if options.tensor > 1 and data_ranks > 1 and options.shard == "none":
        raise CourseError("DDP does not support --tensor; add --shard full, or start as many ranks as --tensor says")
    if options.global_batch_size % (data_ranks * options.accumulate):
        raise CourseError(
            f"--global-batch-size {options.global_batch_size} cannot be shared equally by {data_ranks} ranks with "
            f"{options.accumulate} micro-batches each; choose a multiple of {data_ranks * options.accumulate}"
        )
