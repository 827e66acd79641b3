"""``make update``: a newer version of the course, by git; what a learner has made stays.

In: the course's folder, a git clone. Out: the newer version in it. nbgitpuller commits what the learner has changed,
and lets it win where the course has changed the same. What would go wrong is refused before anything changes.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from dltutorial import paths
from dltutorial.course import exercises
from dltutorial.errors import CourseError

_HALF_DONE = re.compile(r"^(You are (currently|still) |You have unmerged|All conflicts fixed|Unmerged paths).*", re.M)
_SECRET = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s'?]+")  # in an address: a password, a token


def update(root: Path) -> str:
    """Bring the newer version, one update or build at a time; returns what to tell the learner.

    Raises:
        CourseError: there is none to be had, or not into a folder in this state; nothing of the learner's is lost.
    """
    for name in _git(root, "rev-parse", "--local-env-vars").split():  # such as GIT_DIR: it names another repository
        if not name.startswith("GIT_CONFIG"):
            os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C"  # what git says is looked at, here and by nbgitpuller
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    n = int(count) if count.isdecimal() else 0
    # nbgitpuller sees new names, not that a file has moved, nor \303\266; what it commits nobody has to sign or check.
    # A merge that takes a new chapter for the one that goes would put the learner's edits of that into it; older gits
    # heed merge.renames in the strategy recursive only.
    names = ("diff.renames", "merge.renames", "core.quotePath", "commit.gpgSign", "merge.verifySignatures")
    own = dict.fromkeys(names, "false")
    own |= {"merge.ff": "true", "core.hooksPath": os.devnull, "pull.twohead": "recursive"}
    for key, value in own.items():
        os.environ |= {f"GIT_CONFIG_KEY_{n}": key, f"GIT_CONFIG_VALUE_{n}": value}
        os.environ["GIT_CONFIG_COUNT"] = str(n := n + 1)
    os.environ["GIT_MERGE_AUTOEDIT"] = "no"  # an editor would wait for somebody who does not see it
    os.environ.setdefault("GIT_HTTP_LOW_SPEED_LIMIT", "1")  # a server that says nothing is waited for …
    os.environ.setdefault("GIT_HTTP_LOW_SPEED_TIME", "60")  # … so many seconds
    if "GIT_SSH" not in os.environ and not _git(root, "config", "--default", "", "--get", "core.sshCommand").strip():
        os.environ.setdefault("GIT_SSH_COMMAND", "ssh -o ConnectTimeout=60 -o ServerAliveInterval=20")
    with paths.locked(root, exercises.AT_WORK):
        if not (root / ".git").exists():  # one of a folder above would be somebody else's
            raise CourseError(f"{root} is no git clone; unpack the newer release over it")
        if lock := next((root / ".git").glob("*.lock"), None):
            raise CourseError(f"another git is at work here, or was killed; wait for it, or if none runs: rm {lock}")
        state = _git(root, "status", "--long", "--untracked-files=no")
        if half_done := _HALF_DONE.search(state):
            raise CourseError(f"{half_done[0].rstrip(':')}: finish that or undo it, as git status says; then again")
        if not (branch := state.splitlines()[0].removeprefix("On branch ")) or " " in branch:
            raise CourseError(f"{branch}: no branch can be updated; git switch main, then again")
        url = _git(root, "remote", "get-url", "origin", do="say where the course is: git remote add origin URL").strip()
        _git(root, "fetch", "origin", branch, do="check the network, and the name of your branch; then again")
        newer, has = f"refs/remotes/origin/{branch}", f"git remote set-branches --add origin {branch}, then again"
        _git(root, "rev-parse", "--verify", "--quiet", newer, do=has)
        if mine := _git(root, "for-each-ref", f"refs/heads/origin/{branch}", f"refs/tags/origin/{branch}").split():
            raise CourseError(f"git would take your {mine[-1]} for the course's; rename it, then again")
        anew = "the course's history is another one by now: clone it anew, and copy your files over"
        base = _git(root, "merge-base", "HEAD", newer, do=anew).strip()
        tip = base  # the course's last commit that came here, as far as git remembers; it may have been taken back
        with contextlib.suppress(CourseError):
            tip = _git(root, "merge-base", "--fork-point", newer, "HEAD").strip()
        if _git(root, "merge-base", tip, newer).strip() != tip:  # a merge would take it for the learner's work
            raise CourseError(anew)
        changed = _git(root, "diff", "--name-only", "-z", base, newer).split("\0")[:-1]
        _refuse_obstacles(root, newer)
        _keep_notebooks(root, base, changed)
        _pull(root, url, branch)
    return f"the course is up to date, {len(changed)} of its files are newer; what you have made stays"


def _refuse_obstacles(root: Path, newer: str) -> None:
    """What has the place of a file of the course, or of its folder, would go. CourseError: something has.

    A file in the place of a new one is nbgitpuller's to rename, if it can read its name: git quotes some.
    """
    gone = _git(root, "diff", "--name-only", "--diff-filter=D", "-z")
    for name in (gone + _git(root, "diff", "--name-only", "--diff-filter=A", "-z", "HEAD", newer)).split("\0")[:-1]:
        places = [root / part for part in (*reversed(Path(name).parents), Path(name))]
        for place in places:
            quoted = place.is_file() and re.search(r'["\\\x00-\x1f\x7f]', name)
            if place.is_symlink() or quoted or (place.exists() and place.is_dir() == (place == places[-1])):
                there = place.relative_to(root)
                raise CourseError(f"{there} is in the way of the course's {name}; rename it, then again")


def _keep_notebooks(root: Path, base: str, changed: list[str]) -> None:
    """Copy into the folder ``kept`` beside it each notebook that comes anew and whose file git does not hold as it is.

    git may not know of outputs: a filter such as nbstripout hides them. An exercise that it sees as edited stays whole.
    A chapter that was run, but not edited, is put back as it was, so that the whole of its newer version comes; git
    would merge outputs with it, line by line.

    Raises:
        CourseError: there is no room for a copy, or a chapter is saved at this moment.
    """
    for name in (name for name in changed if name.endswith(".ipynb")):
        file, is_exercise = root / name, name.startswith("exercises/")
        here, head, came = paths.held(file), _blob(root, "HEAD", name), _blob(root, base, name)
        if file.is_symlink() or here is None or head is None:
            continue  # of what git has not, a file of the learner's where the course brings one, nbgitpuller makes room
        text = here.replace("\r\n", "\n").replace("\r", "\n")  # as _git has it
        ran = name.startswith("notebooks/") and came not in (None, text)
        ran = ran and exercises.look_at(text).now == exercises.look_at(came).now != ""
        if ran or (text != head and not (is_exercise and _git(root, "diff", "--name-only", "HEAD", "--", name))):
            print(f"{name}: as you had it, it is kept as {exercises.keep(file).relative_to(root)}")
        if ran or (name.startswith("notebooks/") and text == came != here):  # or an editor has changed its line ends
            paths.replace_text(file, here, came)


def _blob(root: Path, commit: str, name: str) -> str | None:
    with contextlib.suppress(CourseError):
        return _git(root, "cat-file", "blob", f"{commit}:{name}")
    return None


def _pull(root: Path, url: str, branch: str) -> None:
    """What nbgitpuller does. CourseError: it fails; a merge that it began is undone."""
    from nbgitpuller.pull import GitPuller

    said = []
    try:
        for line in GitPuller(url, str(root), branch=branch).pull():
            said.append(line.strip())
    except (Exception, KeyboardInterrupt) as error:
        both = ""
        with contextlib.suppress(CourseError):
            names = _git(root, "diff", "--name-only", "--diff-filter=U", "-z").split("\0")[:-1]
            both = shlex.join(name for name in names if _blob(root, f"origin/{branch}", name) is not None)
            _git(root, "merge", "--abort")
        begin = next((n for n, line in enumerate(said) if re.match("error:|fatal:|CONFLICT", line)), len(said))
        if isinstance(error, KeyboardInterrupt) or getattr(error, "returncode", 0) == -signal.SIGINT:
            raise KeyboardInterrupt from None
        if both:
            do = f"rename yours, take the course's by git checkout origin/{branch} -- {both}, then again"
            raise CourseError(f"yours and the course's cannot be joined: {both}; {do}") from error
        why = _SECRET.sub("…", " ".join(said[begin:]) or str(error))[:300] or type(error).__name__
        kept = "nothing that you have made is lost; see git status"
        raise CourseError(f"the newer version is not merged ({why}); {kept}") from error


def _git(root: Path, *words: str, do: str = "see git status") -> str:
    """What git says. CourseError: it fails; then ``do`` this."""
    if not shutil.which("git"):
        raise CourseError("there is no git here; install it, or unpack the newer release over the course")
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, encoding="utf-8", errors="surrogateescape")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("warning:")]
        blamed = next((line for line in said if re.match("error:|fatal:", line)), said[0] if said else "")
        why = _SECRET.sub("…", blamed) or done.returncode
        raise CourseError(f"git {words[0]} failed ({why}); {do}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(update(paths.course_folder("solutions")))
    except FileNotFoundError:
        sys.exit("dltutorial: the folder that you are in is gone; cd into the course's folder")
    except (CourseError, KeyboardInterrupt) as error:
        sys.exit(f"dltutorial: {str(error) or 'interrupted; nothing that you have made is lost'}")
