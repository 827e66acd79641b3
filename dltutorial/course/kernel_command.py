"""``dltutorial kernel install · check · list · remove``: the words of the command line to ``kernelspec`` and back."""

import argparse
import sys
from pathlib import Path

from dltutorial.course import kernel_check, kernelspec

ACTIONS = ("install", "check", "list", "remove")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns the exit status.

    Raises:
        CourseError: as ``kernelspec`` and ``kernel_check``.
    """
    if args.action == "install":
        return _install(args)
    if args.action == "check":
        text, status = kernel_check.check(args.name, args.timeout)
        print(text)
        return status
    if args.action == "remove":
        print("removed", kernelspec.remove(args.name))
        return 0
    for name, site, folder in kernelspec.installed():
        print(f"{name}  {site or 'any machine'}  {folder}")
    return 0


def _install(args: argparse.Namespace) -> int:
    wanted = kernelspec.Wanted(
        args.name,
        args.site or "",
        tuple((args.modules or "").split()),
        tuple(kernelspec.words(args.container)),
        args.python or "",
    )
    prefix = Path(sys.prefix) if args.sys_prefix else args.prefix
    folder = kernelspec.install(wanted, prefix)
    print(f"installed {folder}")
    if not kernelspec.is_found(folder):
        print(f"Jupyter does not look there by itself: export JUPYTER_PATH={folder.parent.parent}")
    print(f"try it: dltutorial kernel check --name {args.name}")
    return 0
