"""The options of ``dltutorial train``.

Input: the command line, and with ``--resume`` also the ``config.json`` of that run.
Output: a namespace with one attribute per option. An option that is set in neither place takes the default of the
parser or the preset.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from dltutorial import config, paths
from dltutorial.errors import CourseError
from dltutorial.one_line_errors import Parser
from dltutorial.record.run_log import read_config


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line. Some defaults depend on the preset, and ``read_options`` sets them."""
    parser = Parser(prog="dltutorial train", description="Train the weather model in one process or on many ranks.")
    add = parser.add_argument
    add("--preset", default="auto", help=f"{', '.join(config.PRESETS)}, or auto: what fits this machine")
    add("--data", metavar="DIR", help="a data set of your own; default: the simulated weather of the preset")
    add("--name", default="train", help="the first part of the name of the run's folder")
    add("--resume", metavar="RUN", help="continue this run of your own, such as runs/train-20260131-120000")
    add("--steps", type=int, metavar="N", help="updates of the weights; default: from the preset")
    add(
        "--global-batch-size",
        type=int,
        metavar="N",
        help="samples of one update, of all ranks; default: from the preset",
    )
    add("--learning-rate", type=float, metavar="X", help="the peak of the schedule; default: from the preset")
    add("--warmup-steps", type=int, metavar="N", help="steps until the peak; default: a tenth of all steps")
    add("--precision", choices=["fp32", "tf32", "bf16"], default="fp32", help="precision of matrix products")
    add("--compile", action="store_true", help="compile the blocks of the model by torch.compile")
    add("--workers", type=int, default=0, metavar="N", help="processes of each rank that load data")
    add(
        "--shard",
        choices=["none", "full"],
        default="none",
        help="none: each rank has the whole model (DDP); full: a shard (FSDP)",
    )
    add("--tensor", type=int, default=1, metavar="N", help="split each layer over N ranks (tensor parallelism)")
    add("--accumulate", type=int, default=1, metavar="N", help="split the batch of each rank into N micro-batches")
    add(
        "--checkpoint-activations",
        action="store_true",
        help="recompute the activations of the blocks, do not store them",
    )
    add(
        "--checkpoint-every",
        type=int,
        default=0,
        metavar="N",
        help="save a checkpoint every N steps; default: only after a signal",
    )
    add(
        "--track",
        nargs="*",
        choices=["tensorboard", "wandb"],
        default=["tensorboard"],
        help="where to send metrics; --track alone: nowhere",
    )
    add("--seed", type=int, default=0, help="seed of the weights, and of the order and the shifts of the samples")
    return parser


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line. With ``--resume``, options that are not given come from the run.

    Raises:
        CourseError: An option differs from that of the run to resume, or its folder cannot be read.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.resume:
        saved = read_config(options.resume)
        parser.set_defaults(**saved)
        options = parser.parse_args(arguments)  # now the saved options are the defaults
        set_defaults_of_preset(options)
        refuse_changes(options, saved)
    else:
        set_defaults_of_preset(options)
    return options


def set_defaults_of_preset(options: argparse.Namespace) -> None:
    """Set those options, in place, that neither the command line nor a run has set."""
    preset = config.preset(options.preset)
    options.preset = preset.name
    for name in ("steps", "global_batch_size", "learning_rate"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(preset, name))
    if options.warmup_steps is None:
        options.warmup_steps = options.steps // 10


def refuse_changes(options: argparse.Namespace, saved: dict[str, Any]) -> None:
    """Raise a CourseError if an option differs from the run to resume. Its folder exists, so ``--name`` may differ."""
    for name, value in saved.items():
        if getattr(options, name) != value and name != "name":
            raise CourseError(
                f"--{name.replace('_', '-')} {getattr(options, name)} differs from {value} in {options.resume}; "
                "leave the option out to resume, or start a new run without --resume"
            )


def check_options(options: argparse.Namespace, world_size: int) -> None:
    """Raise a CourseError if an option is impossible, or if the options do not fit ``world_size`` ranks."""
    paths.inside(paths.runs_dir(), options.name)  # refuses a name that leads out of the folder, such as ../x
    heads = config.PRESETS[options.preset].heads
    for name in ("steps", "global_batch_size", "accumulate", "tensor"):
        if getattr(options, name) < 1:
            raise CourseError(f"--{name.replace('_', '-')} is {getattr(options, name)}, but it must be at least 1")
    if options.warmup_steps > options.steps:
        raise CourseError(f"--warmup-steps {options.warmup_steps} is more than --steps {options.steps}; lower it")
    if world_size % options.tensor != 0 or heads % options.tensor != 0:
        raise CourseError(
            f"--tensor {options.tensor} must divide the {world_size} ranks and the {heads} heads; change it"
        )
    data_parallel_size = world_size // options.tensor
    if options.tensor > 1 and data_parallel_size > 1 and options.shard == "none":
        raise CourseError(f"DDP does not support --tensor; add --shard full, or start exactly {options.tensor} ranks")
    n_micro_batches = data_parallel_size * options.accumulate
    if options.global_batch_size % n_micro_batches != 0:
        raise CourseError(
            f"--global-batch-size {options.global_batch_size} cannot be shared equally by {data_parallel_size} ranks "
            f"with {options.accumulate} micro-batches each; choose a multiple of {n_micro_batches}"
        )
