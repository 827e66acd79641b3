"""``dltutorial update``: fetch a newer version of the course, and lose nothing of what the learner has done.

In: the course's folder, a git clone whose branch follows a remote one. Out: that branch merged. A file that both the
learner and the course changed stays the learner's, and the course's new version is put beside it. Notebooks that were
only run get their new version; the old ones, with their outputs, are kept in ``kept/``.

While git works, such a file is called ``NAME.yours-while-updating``: a rename, so that it is whole at every moment. An
update that was killed is put right by the next one.
"""

import os
import shutil
import subprocess
from pathlib import Path

from dltutorial import paths
from dltutorial.course import copies, exercises
from dltutorial.errors import CourseError

_ASIDE = ".yours-while-updating"
_WHO = ("-c", "user.name=dltutorial", "-c", "user.email=dltutorial@localhost")
_GIT_S = 600


def update(root: Path | None = None) -> int:
    """Fetch and merge; say in a line each what was kept.

    Raises:
        CourseError: no git clone, a merge that is not over, no network, or a merge that git refuses.
    """
    root = paths.course_folder("solutions") if root is None else Path(root)
    _require_clone(root)
    _recover(root)
    _require_no_merge(root)
    theirs = _fetch(root)
    base = _git(root, "merge-base", "HEAD", theirs, why="your clone and the course share no history; clone it afresh")
    _tell_of_stash(root)
    if base == theirs:
        print("the course is up to date")
        return exercises.build(root)
    files = _changed(root, base, theirs)
    mine = [name for name in files if _differs(root, name, "HEAD")]
    try:
        _put_aside(root, mine)
        _merge(root, base, theirs)
    finally:
        _recover(root)
    print(f"updated to {theirs[:7]}: {len(files)} files are new, changed or gone")
    for name in mine:
        _settle(root, name, base, theirs)
    if {"pyproject.toml", "constraints.txt"} & set(files):
        print("the packages that the course needs may have changed: make lab (or make run) installs them")
    return exercises.build(root)


def _require_clone(root: Path) -> None:
    if not shutil.which("git"):
        raise CourseError("update needs git, which is not installed; load its module, or install it")
    if not (root / ".git").exists():
        raise CourseError(
            f"{root} is no git clone; unpack a newer release over it, which leaves your exercises alone, then run: "
            "dltutorial exercises build"
        )


def _require_no_merge(root: Path) -> None:
    """Half a merge is the learner's to end: which side is wanted, nobody else knows."""
    halves = _names(_git(root, "diff", "--name-only", "--diff-filter=U", "-z"))
    git_folder = _git_folder(root)
    if (git_folder / "MERGE_HEAD").exists():
        raise CourseError("git is in the middle of a merge; git merge --abort ends it, then: dltutorial update")
    if any((git_folder / name).exists() for name in ("rebase-merge", "rebase-apply")):
        raise CourseError("git is in the middle of a rebase; git rebase --abort ends it, then: dltutorial update")
    if halves:
        name = halves[0]
        raise CourseError(
            f"{name} waits for you to choose: your version comes back with git checkout --theirs -- {name}, then run "
            "git reset, then: dltutorial update"
        )


def _fetch(root: Path) -> str:
    """Fetch what the branch follows; its newest commit."""
    follows = "your branch follows no other; git switch main goes back to the course's, then: dltutorial update"
    _git(root, "rev-parse", "--abbrev-ref", "@{upstream}", why=follows)
    _git(root, "fetch", "--quiet", why="the course cannot be fetched, and nothing has changed; is there a network?")
    return _git(root, "rev-parse", "@{upstream}")


def _changed(root: Path, base: str, theirs: str) -> list[str]:
    return _names(_git(root, "diff", "--name-only", "--no-renames", "-z", base, theirs))


def _differs(root: Path, name: str, commit: str) -> bool:
    """Whether there is a file ``name`` that is not the one in the commit."""
    path = root / name
    return path.is_file() and path.read_bytes() != _version(root, commit, name)


def _version(root: Path, commit: str, name: str) -> bytes | None:
    """The file in a commit; None if it is not there."""
    told = _run(root, "cat-file", "blob", f"{commit}:{name}")
    return told.stdout if told.returncode == 0 else None


def _put_aside(root: Path, names: list[str]) -> None:
    """The learner's files go out of git's way, and git's own come in their places."""
    for name in names:
        (root / name).rename(root / f"{name}{_ASIDE}")
        _git(root, "reset", "--quiet", "--", name)
        if _version(root, "HEAD", name) is not None:
            _git(root, "checkout", "--quiet", "HEAD", "--", name)


def _recover(root: Path) -> None:
    """Files that were put aside go back to their places."""
    for name in _names(_git(root, "ls-files", "--others", "-z", "--", f"*{_ASIDE}")):
        (root / name).replace(root / name.removesuffix(_ASIDE))


def _merge(root: Path, base: str, theirs: str) -> None:
    """Bring the branch to ``theirs``; what the learner has committed wins where both changed the same lines.

    Raises:
        CourseError: git refuses; nothing has changed then.
    """
    if _git(root, "rev-parse", "HEAD") == base:
        _git(root, "merge", "--quiet", "--ff-only", theirs, why="git does not merge, and nothing has changed")
        return
    _git(root, "reset", "--quiet")  # what is staged, but not committed, would stop the merge
    told = _run(root, *_WHO, "merge", "--quiet", "--no-edit", "-Xours", theirs)
    halves = _names(_git(root, "diff", "--name-only", "--diff-filter=U", "-z"))
    if told.returncode and not halves:
        raise _refused(told, "git does not merge, and nothing has changed")
    for name in halves:  # one side removed the file, the other changed it: it stays
        _git(root, "add", "--", name)
    if halves:
        _git(root, *_WHO, "commit", "--quiet", "--no-edit")


def _settle(root: Path, name: str, base: str, theirs: str) -> None:
    """A file of the learner's that the course changed: theirs stays, unless it is a notebook that was only run."""
    path, old, new = root / name, _version(root, base, name), _version(root, theirs, name)
    if new is None:
        print(f"{name} is no part of the course any more; yours is kept")
    elif path.read_bytes() == new:
        return
    elif old is not None and _cells(path.read_bytes()) == _cells(old) != "":
        kept = copies.keep(path)
        _write(path, new)
        print(f"{name}: new; the one you ran is kept as {kept.relative_to(root)}")
    elif not _is_exercise(root, path):  # those are told by exercises.build
        beside = copies.beside(path)
        if beside.is_file() and beside.read_bytes() != new:  # maybe somebody went on working in it
            copies.keep(beside)
        _write(beside, new)
        print(f"{name} holds your work and stays; its new version is {beside.relative_to(root)}")


def _write(path: Path, data: bytes) -> None:
    with paths.atomic(path) as temporary:
        temporary.write_bytes(data)


def _cells(data: bytes) -> str:
    return copies.look_at(data.decode("utf-8", "replace")).cells


def _is_exercise(root: Path, path: Path) -> bool:
    return path.parent == root / "exercises" and (root / "solutions" / path.name).is_file()


def _tell_of_stash(root: Path) -> None:
    """Who followed git's advice to stash an exercise finds it empty."""
    if _run(root, "rev-parse", "--verify", "--quiet", "refs/stash").returncode:
        return
    for name in _changed(root, "stash@{0}^1", "stash@{0}"):
        if _is_exercise(root, root / name) and _differs(root, name, "stash@{0}"):
            print(f"git has put your {name} away; git checkout stash@{{0}} -- {name} brings it back")


def _git_folder(root: Path) -> Path:
    return root / _git(root, "rev-parse", "--git-dir")


def _git(root: Path, *words: str, why: str = "git has failed") -> str:
    """What git says.

    Raises:
        CourseError: it fails; ``why``, and its own last words.
    """
    told = _run(root, *words)
    if told.returncode:
        raise _refused(told, why)
    return told.stdout.decode("utf-8", "surrogateescape").strip("\n")


def _refused(told: subprocess.CompletedProcess, why: str) -> CourseError:
    said = [line.strip() for line in told.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return CourseError(f"{why} (git says: {said[-1]})" if said else why)


def _run(root: Path, *words: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(
            ["git", *words], cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CourseError(f"git {words[0]} took longer than {_GIT_S} s; is there a network? Try again") from error


def _names(told: str) -> list[str]:
    return [name for name in told.split("\0") if name]
