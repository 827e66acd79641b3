"""What the commands of ``dltutorial`` do. ``parser.py`` has their options.

The input of each function is the options of a command. The output is what the command prints, and its exit status. Each
function imports what it needs, so that ``dltutorial --help`` does not load torch.
"""

import argparse

from dltutorial.config import preset


def doctor(args: argparse.Namespace) -> int:
    """Print the report of this machine."""
    from dltutorial.course.doctor import report

    text, status = report(measure=args.measure)
    print(text)
    return status


def run(args: argparse.Namespace) -> int:
    """Run notebooks."""
    from dltutorial.course import runner

    return runner.run(args.chapters, args.preset, args.jobs, dict(args.parameter), args.out, args.timeout)


def exercises(args: argparse.Namespace) -> int:
    """Show the table of the exercises, start an exercise again, or build all exercises."""
    from dltutorial.course import exercise_status, exercises

    if args.action == "reset":
        return exercise_status.reset(args.name, yes=args.yes)
    if args.action == "build":
        return exercises.build(check=args.check)
    print(exercise_status.status())
    return 0


def data(args: argparse.Namespace) -> int:
    """Simulate, check or convert a data set."""
    from dltutorial.data import check, convert, weather

    if args.action == "check":
        report = check.check(args.source, args.write_statistics, progress=True)
        print(*report.problems, *report.notes, sep="\n")
        return int(bool(report.problems))
    if args.action == "weather":
        folder = weather.ensure(preset(args.preset), args.out, seed=args.seed)
    else:
        folder = convert.convert(args.source or weather.ensure(preset(args.preset)), args.layout, args.out)
    print(folder)
    return 0


def pocket(args: argparse.Namespace) -> int:
    """Start or end a pocket cluster, or run a script on two nodes with a slow link."""
    from dltutorial.launch import pocket, two_nodes

    if args.action == "network":
        two_nodes.run(args.script)
    return pocket.command(args.action, args.nodes, args.name)
