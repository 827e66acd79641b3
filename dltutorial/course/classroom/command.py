"""``dltutorial class join · leave · status · view``: what the words of the command line lead to.

In: the parsed arguments. Out: the exit status; text is printed.
"""

import argparse

from dltutorial.course.classroom import membership, view
from dltutorial.errors import CourseError


def run(args: argparse.Namespace) -> int:
    """Do what ``args.action`` says; returns the exit status.

    Raises:
        CourseError: an action lacks its folder; or as the action.
    """
    if args.action == "leave":
        print(membership.leave(args.remove))
    elif args.action == "status":
        print(membership.status())
    elif args.folder is None:
        raise CourseError(f"class {args.action} needs the class's folder: dltutorial class {args.action} FOLDER")
    elif args.action == "join":
        print(membership.join(args.folder, args.name))
    elif args.watch is None:
        print(view.write(args.folder, args.out))
    else:
        view.watch(args.folder, args.out, args.watch)
    return 0
