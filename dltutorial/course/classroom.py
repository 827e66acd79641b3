"""``dltutorial class join · leave · status``: a learner shares with a class, or stops; ``view``: the instructor's page.

In: the class's folder, a name or none. Out: text for the terminal; the learner's setting and the file in the folder;
for ``view`` a page, made by ``pages/class.ipynb``. Only what is recorded after joining is shared (``record.sharing``).
"""

import contextlib
import json
import os
import secrets
import sys
import time
from pathlib import Path

from dltutorial import paths
from dltutorial.course import report
from dltutorial.errors import CourseError
from dltutorial.record import sharing
from dltutorial.record.sharing import Membership

# Pseudonyms such as calm-otter-417: drawn by chance, so that they say nothing about anybody.
_HOW = "able amber bold brave bright calm clever cosy daring early eager fair fast fond gentle glad golden happy keen"
_WHO = "badger bear beaver bison crane deer dolphin eagle falcon finch fox gecko hare heron ibex koala lynx otter owl"


def join(folder: Path, name: str | None = None) -> str:
    """Start sharing, under ``name`` or a pseudonym drawn by chance; returns what to tell the learner.

    CourseError: no such folder, it cannot be written, the name is taken or cannot be one, or a class is joined.
    """
    with paths.locked(sharing.setting_file().parent):  # of two at the same moment one joins
        if now := sharing.membership():
            raise CourseError(f"you are {now.name} in {now.folder} already; leave it first: dltutorial class leave")
        folder = Path(folder).absolute()
        if not folder.is_dir():
            raise CourseError(f"no folder {folder}; ask your instructor for the class's folder")
        drawn = f"{secrets.choice(_HOW.split())}-{secrets.choice(_WHO.split())}-{100 + secrets.randbelow(900)}"
        member = Membership(folder, paths.inside(folder, drawn if name is None else name).name)
        if len(member.name) > 40:
            raise CourseError(f"the name has {len(member.name)} characters; take 40 at most")
        if os.path.realpath(member.file) == os.path.realpath(paths.records_file()):
            raise CourseError(f"{member.file} holds your own records; choose another name, or the class's folder")
        try:
            member.file.touch(exist_ok=False)  # which nobody else has
        except FileExistsError:
            raise CourseError(f"somebody is {member.name} already in {folder}; choose another name") from None
        except OSError as error:
            raise CourseError(f"cannot write to {folder}: {error.strerror}; ask your instructor") from error
        with contextlib.suppress(OSError):
            member.file.chmod(0o644)  # the instructor reads it, whatever the umask
        mark = ""
        with contextlib.suppress(OSError, AttributeError):  # some file systems, and some systems, have no marks
            os.setxattr(member.file, sharing.MARK, (made := secrets.token_hex(8)).encode())
            mark = made
        try:
            noted = {"folder": str(folder), "inode": member.file.stat().st_ino, "mark": mark}
            paths.write_text(sharing.setting_file(), json.dumps(member._asdict() | noted) + "\n")
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

    CourseError: the setting or the file cannot be removed, or the class's folder is away; nothing is changed then.
    """
    damaged = False
    try:
        member = sharing.membership()
    except CourseError:  # leaving mends it
        member, damaged = None, True
    away = member is not None and not os.access(member.folder, os.X_OK)
    if member and away and remove:
        raise CourseError(f"{member.folder} is out of reach now; when it is not, again, or leave without --remove")
    theirs = member is not None and not away and member.file.exists() and not member.is_mine(member.file)
    there, has_shared = sharing.setting_file().exists(), member is not None and (away or member.file.exists())
    try:
        if remove and member and not theirs:
            member.file.unlink(missing_ok=True)
        sharing.setting_file().unlink(missing_ok=True)
    except OSError as error:
        raise CourseError(f"cannot remove {error.filename}: {error.strerror}; remove it by hand") from error
    if damaged:
        return "You have left, but the setting was damaged: what was shared, if anything, is in the class's folder."
    if member is None or not has_shared:
        return "You have left: nothing is shared." if there else "You are in no class: nothing is shared."
    kept = "is removed" if remove else "stays; remove it with rm if you like"
    kept = "is a copy, or somebody else's by now, and stays" if theirs else kept
    kept = "is out of reach now" if away else kept
    return f"You have left: nothing more is shared. What was shared, {member.file}, {kept}."


def status() -> str:
    """Whether anything is shared, and every line of it.

    CourseError: the setting is damaged, or the file cannot be read.
    """
    member = sharing.membership()
    if member is None:
        return "You are in no class: nothing is shared. To join one: dltutorial class join FOLDER"
    try:
        shared = paths.read_text(member.file)
        if not member.is_mine(member.file):
            raise CourseError(sharing.NOT_YOURS.format(member.file))
    except (OSError, UnicodeDecodeError) as error:
        todo = "leave the class, and join again" if member.folder.is_dir() else "its folder is away: wait for it"
        raise CourseError(f"cannot read {member.file} ({error}); {todo}") from error
    paused = " (switched off here by DLTUTORIAL_CLASS=off)" if sharing.switched_off() else ""
    fields = "\n".join(f"  {kind}: time, chapter, {', '.join(keys)}" for kind, keys in sharing.FIELDS.items())
    told = f"You are {member.name} in {member.folder}{paused}.\nShared of each kind of record, and nothing else:\n"
    return f"{told}{fields}\nSo far, lines in {member.file.name}: {shared.count(chr(10))}\n{shared}".rstrip()


def view(folder: Path, out: Path | None = None, every_s: float | None = None) -> None:
    """Write the page of the class (default: ``class.html`` in the runs folder), again every ``every_s`` seconds.

    CourseError: as ``report.write``, the first time; later it is only told.
    """
    out = report.write("class", out, every_s, folder=str(folder))
    print(f"{out}, again every {every_s:g} s; Ctrl-C ends it" if every_s else out, flush=True)
    while every_s:
        time.sleep(every_s)
        try:
            report.write("class", out, every_s, folder=str(folder))
        except CourseError as error:  # a shared disk that is away for a moment must not end it
            print(f"{time.strftime('%H:%M')} the page is as it was: {error}", file=sys.stderr, flush=True)
