"""``dltutorial class join · leave · status``: what a learner does to share with a class, or to stop.

In: the class's folder, a name or none. Out: text for the terminal; the learner's setting and the file in the folder.
Only what is recorded after joining is shared.
"""

import contextlib
import json
import os
from pathlib import Path

from dltutorial import paths
from dltutorial.course.classroom import names
from dltutorial.errors import CourseError
from dltutorial.record import sharing
from dltutorial.record.sharing import Membership

_TRIES = 20
_LONGEST_NAME = 40


def join(folder: Path, name: str | None = None) -> str:
    """Start sharing; returns what to tell the learner.

    Args:
        folder: that the class shares; it must be there.
        name: a pseudonym of one's own; None: one is drawn by chance.

    Raises:
        CourseError: no such folder, it cannot be written, the name is taken or cannot be one, or a class is joined.
    """
    before = sharing.membership()
    if before:
        raise CourseError(f"you are {before.name} in {before.folder} already; leave it first: dltutorial class leave")
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise CourseError(f"no folder {folder}; ask your instructor for the class's folder")
    if name is not None and len(name) > _LONGEST_NAME:
        raise CourseError(f"the name has {len(name)} characters; take {_LONGEST_NAME} at most")
    member = _claim(folder, name)
    about = {"folder": str(member.folder), "name": member.name}
    try:
        paths.write_text(sharing.setting_file(), json.dumps(about) + "\n")
    except CourseError:
        member.file.unlink(missing_ok=True)
        raise
    return (
        f"You are {member.name}. From now on a few fields of your records go into {member.file}\n"
        "and nowhere else: how checks end, guesses, a few speeds of the machine, where you are in the course.\n"
        "dltutorial class status shows every line of it; dltutorial class leave ends it."
    )


def leave(remove: bool = False) -> str:
    """Stop sharing; with ``remove`` the file in the class's folder goes too. Returns what to tell the learner.

    Raises:
        CourseError: the setting or the file cannot be removed.
    """
    try:
        member = sharing.membership()
    except CourseError:  # damaged: leaving mends it
        member = None
    there, has_shared = sharing.setting_file().exists(), member is not None and member.file.exists()
    try:
        sharing.setting_file().unlink(missing_ok=True)
        if remove and member:
            member.file.unlink(missing_ok=True)
    except OSError as error:
        raise CourseError(f"cannot remove {error.filename}: {error.strerror}; remove it by hand") from error
    if not has_shared:
        return "You have left: nothing is shared." if there else "You are in no class: nothing is shared."
    kept = "is removed" if remove else "stays; remove it with rm if you like"
    return f"You have left: nothing more is shared. What was shared, {member.file}, {kept}."


def status() -> str:
    """Whether anything is shared, and every line of it.

    Raises:
        CourseError: the setting is damaged, or the file cannot be read.
    """
    member = sharing.membership()
    if member is None:
        return "You are in no class: nothing is shared. To join one: dltutorial class join FOLDER"
    try:
        shared = member.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(f"cannot read {member.file} ({error}); leave the class, and join again") from error
    paused = " (switched off here by DLTUTORIAL_CLASS=off)" if sharing.switched_off() else ""
    fields = "\n".join(f"  {kind}: time, chapter, {', '.join(keys)}" for kind, keys in sharing.FIELDS.items())
    lines = shared.count("\n")
    return (
        f"You are {member.name} in {member.folder}{paused}.\n"
        f"Shared of each kind of record, and nothing else:\n{fields}\n"
        f"So far, {lines} {'line' if lines == 1 else 'lines'} in {member.file.name}:\n{shared}"
    ).rstrip()


def _claim(folder: Path, name: str | None) -> Membership:
    """Make the learner's file, which nobody else has."""
    for _ in range(_TRIES):
        member = Membership(folder, paths.inside(folder, names.pseudonym() if name is None else name).name)
        try:
            handle = os.open(member.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            if name is not None:
                raise CourseError(f"somebody is {name} already in {folder}; choose another name") from None
            continue
        except OSError as error:
            raise CourseError(f"cannot write to {folder}: {error.strerror}; ask your instructor") from error
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o644)  # the instructor reads it, whatever the umask
        os.close(handle)
        return member
    raise CourseError(f"no free name found in {folder}; give one with --name")
