"""``make update``: a newer version of the course, by git; what a learner has made stays.

In: the course's folder, a git clone. Out: the newer version in it. As nbgitpuller does, it commits what the learner has
changed, and lets it win where the course has changed the same. Git joins the two beside the learner's files, not in
them. Then each file that is newer takes its place at once, if what lies there is still what was joined. What would go
wrong is refused before anything changes; what was saved meanwhile stays, and the next update joins it as well.
"""

import sys

try:  # loaded so, a Ctrl-C meanwhile ends in one line as it does later
    import contextlib
    import datetime
    import errno
    import fcntl
    import hashlib
    import io
    import itertools
    import json
    import os
    import re
    import select
    import shlex
    import shutil
    import signal
    import stat
    import subprocess
    from pathlib import Path, PurePosixPath
    from typing import Any

    import psutil

    from dltutorial import paths
    from dltutorial.course import exercises
    from dltutorial.errors import CourseError
except KeyboardInterrupt:
    print("dltutorial: interrupted", file=sys.stderr)
    sys.exit(130)

_HALF_DONE = re.compile(r"^(You are (currently|still) |You have unmerged|All conflicts fixed|Unmerged paths).*", re.M)
_SECRET = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s'?]+")  # in an address: a password, a token
_NO_ROOM = re.compile(
    rb"^(error|fatal): .*(No space left on device|Read-only file system|Disk quota exceeded|Permission denied$|"
    rb"insufficient permission)",
    re.M,
)
_SILENCE_S = 90.0  # a server that says nothing is waited for so long; one that sends is heard of twice a second
_SET = {  # whatever the learner has set
    "core.hooksPath": os.devnull,
    "core.safecrlf": "false",
    "color.ui": "false",
    "color.status": "false",
    "status.displayCommentPrefix": "false",
    "user.name": "make update",
    "user.email": "update@localhost",
}
_GIT = ["git", *(word for name, value in _SET.items() for word in ("-c", f"{name}={value}"))]

Entry = tuple[str, str]  # of a file in a commit: its mode, and git's name of what it holds
Lies = tuple[int, str | None]  # of what is on disk: its mode, and all that it holds, or where it leads

# Where the newer files wait, and what they replace is put: on the file system of the files, so that each moves at once.
_ROOM = ".update.partial"
_OURS = "of-make-update"  # a file in it, which says that it is no folder of the learner's
_LISTING = "listing.json"  # in it, while files are placed: what lay there and what comes; who finds it looks back first


def update(root: Path) -> str:
    """Bring the newer version, one update or build at a time; returns what to tell the learner.

    Raises:
        CourseError: there is none to be had, or not into a folder in this state; nothing of the learner's is lost.
    """
    for name in _git(root, "rev-parse", "--local-env-vars").split():  # such as GIT_DIR: it names another repository
        if not name.startswith("GIT_CONFIG"):
            os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C"  # what git says is looked at
    os.environ.setdefault("GIT_HTTP_LOW_SPEED_LIMIT", "1")  # a web server that falls silent is waited for …
    os.environ.setdefault("GIT_HTTP_LOW_SPEED_TIME", "60")  # … so many seconds
    if "GIT_SSH" not in os.environ and not _git(root, "config", "--default", "", "--get", "core.sshCommand").strip():
        os.environ.setdefault("GIT_SSH_COMMAND", "ssh -o ConnectTimeout=60 -o ServerAliveInterval=20")
    with paths.locked(root, exercises.AT_WORK):
        if not (root / ".git").exists():  # one of a folder above would be somebody else's
            raise CourseError(f"{root} is no git clone; unpack the newer release over it")
        _open_room(root)
        locks = itertools.chain((root / ".git").glob("*.lock"), (root / ".git" / "refs").rglob("*.lock"))
        if lock := next(locks, None):
            raise CourseError(f"another git is at work here, or was killed; wait for it, or if none runs: rm {lock}")
        state = _git(root, "status", "--long", "--untracked-files=no")
        if half_done := _HALF_DONE.search(state):
            raise CourseError(f"{half_done[0].rstrip(':')}: finish that or undo it, as git status says; then again")
        if not (branch := state.splitlines()[0].removeprefix("On branch ")) or " " in branch:
            raise CourseError(f"{branch}: no branch can be updated; git switch main, then again")
        note = f"refs/dltutorial/{branch}"
        newer_files: set[str] = set()
        if _git(root, "for-each-ref", note):  # an update was killed; what it was bringing comes first
            newer_files |= _bring(root, note, note)
        _git(root, "remote", "get-url", "origin", do="say where the course is: git remote add origin URL")
        _fetch(root, branch)
        newer = f"refs/remotes/origin/{branch}"
        if mine := _git(root, "for-each-ref", f"refs/heads/origin/{branch}", f"refs/tags/origin/{branch}").split():
            raise CourseError(f"git would take your {mine[-1]} for the course's; rename it, then again")
        anew = "the course's history is another one by now: clone it anew, and copy your files over"
        if _git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
            anew = "this clone lacks older commits of the course: git fetch --unshallow, then again"
        tip = _git(root, "merge-base", "HEAD", newer, do=anew).strip()
        with contextlib.suppress(CourseError):  # the last that came here, as far as git remembers
            tip = _git(root, "merge-base", "--fork-point", newer, "HEAD").strip()
        if _git(root, "merge-base", tip, newer).strip() != tip:  # taken back; it would pass for the learner's work
            raise CourseError(anew)
        newer_files |= _bring(root, f"origin/{branch}", note)
    return f"the course in {root} is up to date, {len(newer_files)} of its files are newer; what you have made stays"


def _fetch(root: Path, branch: str) -> None:
    """Have git fetch the course, as long as something comes.

    It is in this program's group, as only that of a terminal may ask there for a password.

    Raises:
        CourseError: it fails, or the server is silent.
    """
    said, do = b"", "check the network, and the name of your branch; then again"
    there = f"+refs/heads/{branch}:refs/remotes/origin/{branch}"  # whatever remote.origin.fetch says
    command = [*_GIT, "fetch", "--progress", "--no-recurse-submodules", "origin", there]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        try:
            while select.select([run.stderr], [], [], _SILENCE_S)[0]:
                if not (part := os.read(run.stderr.fileno(), 2**16)):
                    break
                said += part
            else:
                raise CourseError(f"the course's server has said nothing for {_SILENCE_S:.0f} seconds; {do}")
            run.wait()
        finally:
            if run.poll() is None:
                _end(psutil.Process(run.pid))
    if _NO_ROOM.search(said.replace(b"\r", b"\n")):
        do = "make room in .git, and see that you may write there; then again"
    _check(run.returncode, "fetch", said, do)


def _end(git: psutil.Process) -> None:
    """End a git and what it has started, such as a connection that waits."""
    alive = [*git.children(recursive=True), git]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            with contextlib.suppress(psutil.Error):  # it has just ended
                end(process)
        alive = psutil.wait_procs(alive, timeout=5)[1]


def _bring(root: Path, newer: str, note: str) -> set[str]:
    """Join ``newer`` with what is here; ``note`` names the joined commit until all of it is. Returns what changed.

    Raises:
        CourseError: it cannot be joined, and nothing has changed; or a file was saved just now, and the next update
            goes on from ``note``.
    """
    room = _open_room(root)
    try:
        room.mkdir(exist_ok=True)
        (room / _OURS).write_text("make update works in this folder, and removes it\n", encoding="utf-8")
        return _Join(root, room, newer).bring(note)
    except OSError as error:
        named = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str)]
        file = next((name for name in named if not name.is_relative_to(room)), named[0] if named else root)
        raise CourseError(f"cannot write {file} ({error.strerror or error}); mend that, then again") from error
    finally:
        _close_room(room)


def _open_room(root: Path) -> Path:
    """The place of the folder to work in. What an update that was killed has left there is brought back first.

    Raises:
        CourseError: a folder of the learner's has its name; or what it holds of the learner's cannot be brought back.
    """
    room = root / _ROOM
    if not os.path.lexists(room):
        return room
    if room.is_symlink() or not room.is_dir() or (any(room.iterdir()) and not (room / _OURS).is_file()):
        raise CourseError(f"{room} is in the way of what make update puts there; rename it, then again")
    if (room / _LISTING).exists():
        for name, file, is_newer in _look_back(root, room):
            if is_newer:
                _tell(f"{name}: it was saved while the last update was at work, and lies in {file.name}")
    _close_room(room)
    return room


def _close_room(room: Path) -> None:
    """Remove the folder, unless it has something of the learner's; what says whose it is goes last."""
    if (room / _OURS).exists() and not (room / _LISTING).exists():
        with contextlib.suppress(OSError):  # the next update removes it
            for path in (path for path in room.iterdir() if path.name != _OURS):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            shutil.rmtree(room)


class _Join:
    """What lies in the course's folder, joined with a newer version.

    Of each file that the course or the learner has changed: ``was``, what lay there on disk; and what git holds of it:
    ``mine`` of that, ``head`` of the last commit here, ``new`` of the newer version, ``base`` of the one before it.
    """

    def __init__(self, root: Path, room: Path, newer: str) -> None:
        self.root, self.room, self.newer = root, room, newer
        self.here, self.there = (self.git("rev-parse", f"{name}^{{commit}}") for name in ("HEAD", newer))
        self.before = self.git("merge-base", self.here, self.there)
        self.head, self.new, self.base = (self.files(commit) for commit in (self.here, self.there, self.before))
        self.changed = {name for name in self.base | self.new if self.base.get(name) != self.new.get(name)}
        names = self.changed | _names(self.git("diff-index", "--name-only", "-z", "HEAD"))
        self.was = {name: _lies(root, name) for name in sorted(names & (self.head | self.new).keys())}
        present = [name for name, lies in self.was.items() if lies and (stat.S_ISREG(lies[0]) or stat.S_ISLNK(lies[0]))]
        self.git("read-tree", "HEAD")
        self.git("update-index", "--add", "--replace", "-z", "--stdin", given="\0".join(present))
        found = self.files(self.git("write-tree"))
        self.mine = {name: found[name] for name in present}
        listed = _names(_git(root, "ls-files", "-t", "-z"))  # S: git is told not to have it on disk
        self.hidden = {name for name, lies in self.was.items() if not lies and f"S {name}" in listed} & self.head.keys()
        self.mine |= {name: self.head[name] for name in self.hidden}

    def git(self, *words: str, given: str = "") -> str:
        """What git says. It has an index of its own: the learner's, and the files, stay as they are."""
        return _git(self.root, *words, given=given, index=self.room / "index").removesuffix("\n")

    def files(self, commit: str, kind: str = "blob") -> dict[str, Entry]:
        """Each file of a commit; a repository in it is none, and stays as it is."""
        lines = [line.split("\t", 1) for line in self.git("ls-tree", "-r", "-z", commit).split("\0")[:-1]]
        return {name: (about.split()[0], about.split()[2]) for about, name in lines if about.split()[1] == kind}

    def text(self, entry: Entry | None) -> str:
        """What git holds of a file; of none, nothing."""
        return _git(self.root, "cat-file", "blob", entry[1]) if entry else ""

    def bring(self, note: str) -> set[str]:
        """Bring it, or refuse to before anything changes: see ``_bring``."""
        wanted, own = self.wanted()
        todo = {name: to for name, to in wanted.items() if to != self.mine.get(name) and name not in self.hidden}
        if self.changed or todo:
            self.refuse_staged()
            self.refuse_halves()
            self.refuse_obstacles(todo)
            mine = self.commit(own, "What the learner has changed", self.here) if own else self.here
            merged = {self.before: self.there}.get(mine) or {self.before: self.here}.get(self.there)
            merged = merged or self.commit(own | wanted, "A newer version of the course", mine, self.there)
            self.index(own | wanted)
            anew = "\0".join(name for name, entry in todo.items() if entry)
            self.git("checkout-index", "--force", f"--prefix={self.room.name}/new/", "-z", "--stdin", given=anew)
            _git(self.root, "update-ref", note, merged)
            self.note_down(todo)
            back: list[tuple[str, Path, bool]] = []
            try:
                for name in sorted(todo, key=lambda name: (todo[name] is not None, name)):  # what goes makes room
                    self.place(name, todo[name])
            finally:
                back += _look_back(self.root, self.room)
                if saved := [file for _, file, is_newer in back if is_newer]:
                    raise _saved(saved[0])
            if back:  # the learner has deleted a newer file
                raise _saved(back[0][1])
            _git(self.root, "read-tree", "-m", "-i", merged, do="then again")
            with contextlib.suppress(CourseError):  # what is not as in the commit, such as a file saved by now
                _git(self.root, "update-index", "-q", "--refresh")
            _git(self.root, "update-ref", "-m", "make update", "HEAD", merged, self.here, do="then again")
        _git(self.root, "update-ref", "-d", note)
        return self.changed

    def wanted(self) -> tuple[dict[str, Entry | None], dict[str, Entry | None]]:
        """What shall lie in each place, and what of the learner's the last commit has not.

        A file that the learner has deleted comes again. A chapter that was run, but not edited, is the course's: git
        would merge outputs with it, line by line. So is what an update that was killed has brought already.
        """
        wanted: dict[str, Entry | None] = {}
        own: dict[str, Entry | None] = {}
        both = []
        for name in self.was:
            mine, base, new = self.mine.get(name), self.base.get(name), self.new.get(name)
            if name not in self.head or mine in (None, base, new) or self.is_as_it_came(name):
                wanted[name] = new
            else:
                own |= {name: mine} if mine != self.head[name] else {}
                wanted[name] = self.joined(name, mine, base, new) if name in self.changed else mine
                both += [name] if wanted[name] is None else []
        if both:
            do = f"rename yours, take the course's by git checkout {self.newer} -- {shlex.join(both)}, then again"
            raise CourseError(f"yours and the course's cannot be joined: {shlex.join(both)}; {do}")
        return wanted, own

    def joined(self, name: str, mine: Entry, base: Entry | None, new: Entry | None) -> Entry | None:
        """The lines of both, and the learner's where both have changed the same. None: they are no two files."""
        if new is None:  # the course drops what the learner has changed
            return mine
        if not mine[0].startswith("100") or not new[0].startswith("100"):  # a link
            return None
        mode = new[0] if base and base[0] == mine[0] else mine[0]
        if self.git("check-attr", "merge", "--", name).endswith(": unset"):
            return mode, mine[1]
        files = [self.room / which for which in ("mine", "came", "newer")]
        for file, entry in zip(files, (mine, base, new), strict=True):
            file.write_text(self.text(entry), encoding="utf-8", errors="surrogateescape", newline="")
        with contextlib.suppress(CourseError):  # it is no text
            lines = _git(self.root, "merge-file", "-p", "-q", "--ours", *map(str, files))
            return mode, self.git("hash-object", "-w", "--stdin", given=lines)
        return mode, mine[1]

    def is_as_it_came(self, name: str) -> bool:
        """Whether it is a chapter that was run at most, or of which an editor has changed the line ends alone."""
        if not (name in self.changed and name in self.base and name.startswith("notebooks/") and self.lines(name)):
            return False
        now, came = self.lines(name), _lines(self.text(self.base[name]))
        return now == came or exercises.look_at(now).now == exercises.look_at(came).now != ""

    def lines(self, name: str) -> str:
        """What a notebook held, line ends as in git; "" if it is none."""
        lies = self.was[name]
        return _lines(lies[1] or "") if lies and stat.S_ISREG(lies[0]) and name.endswith(".ipynb") else ""

    def is_nowhere_else(self, name: str, text: str) -> bool:
        """Whether git would not write a file again as it is: a filter hides some of it, or it is a chapter that ran."""
        if self.lines(name):
            ran = self.is_as_it_came(name) and _lines(text) != _lines(self.text(self.base[name]))
            return ran or _lines(text) != _lines(self.text(self.head[name]))
        if _lines(text) == _lines(self.text(self.mine[name])):
            return False
        with contextlib.suppress(CourseError):  # a filter that fails
            return _lines(text) != _lines(
                _git(self.root, "cat-file", "--filters", f"--path={name}", self.mine[name][1])
            )
        return True

    def index(self, files: dict[str, Entry | None]) -> None:
        """Have the last commit in the index of its own, but for these files."""
        self.git("read-tree", "HEAD")
        gone = ("0", "0" * len(self.here))
        lines = sorted(f"{' '.join(entry or gone)}\t{name}\0" for name, entry in files.items())  # what goes makes room
        self.git("update-index", "-z", "--index-info", given="".join(lines))

    def commit(self, files: dict[str, Entry | None], what: str, *parents: str) -> str:
        """A commit of the last one's files, but for these."""
        self.index(files)
        return self.git("commit-tree", *(f"-p{parent}" for parent in parents), "-m", what, self.git("write-tree"))

    def refuse_staged(self) -> None:
        """CourseError: the index holds what neither the file nor a commit does; it would go."""
        kinds = (("--cached", "HEAD"), ("--cached", self.there), ())
        found = [_names(_git(self.root, "diff", "--no-renames", "--name-only", "-z", *kind)) for kind in kinds]
        if staged := sorted(set.intersection(*found)):
            do = "git commit -m staged, then again"
            raise CourseError(f"you have staged {staged[0]}, and then changed it; so that both stay: {do}")

    def refuse_halves(self) -> None:
        """CourseError: a notebook of the learner's ends in its midst, as while it is saved on a slow disk."""
        for name in sorted((self.changed & self.mine.keys()) - self.hidden):
            notebook = name.endswith(".ipynb") and exercises.look_at(_lines(self.text(self.head.get(name)))).now
            if notebook and not exercises.look_at(self.lines(name)).now:
                raise CourseError(f"{name} is no whole notebook: wait until it is saved, or rename it; then again")

    def refuse_obstacles(self, todo: dict[str, Entry | None]) -> None:
        """What has the place of a file of the course, or of its folder, would go. CourseError: something has."""
        go = {name for name in todo if todo[name] is None and name in self.mine}
        repositories = self.files(self.here, "commit")
        mounts = {part.mountpoint for part in psutil.disk_partitions(all=True)}
        for name in (name for name in todo if todo[name]):
            for place in (*map(str, reversed(PurePosixPath(name).parents)), name)[1:]:
                there = self.root / place
                if str(there.resolve()) in mounts:
                    do = "unmount it, or unpack the newer release over the course"
                    raise CourseError(f"{place} is mounted by itself, so no newer file can be moved there; {do}")
                is_folder = there.is_dir() and not there.is_symlink()
                if place == name and is_folder:
                    inside = (path for path in there.rglob("*") if path.is_symlink() or not path.is_dir())
                    in_way = any(
                        str(path.relative_to(self.root)) not in go and not _is_pythons(path) for path in inside
                    )
                else:  # a file in the place of a new one is renamed
                    in_way = place != name and os.path.lexists(there) and not is_folder and place not in go
                if in_way or place in repositories:
                    raise CourseError(f"{place} is in the way of the course's {name}; rename it, then again")

    def place(self, name: str, entry: Entry | None) -> None:
        """Have the file of the newer version lie there. CourseError: it was saved since, and stays."""
        file, was = self.root / name, self.was[name]
        if was and stat.S_ISDIR(was[0]):
            _clear(file)
            was = None
        elif was and not (name in self.head and name in self.mine):
            _tell(f"{name}: yours is now {file.rename(_free(file)).name}, as the course brings one of this name")
            was = None
        elif was and stat.S_ISREG(was[0]) and self.is_nowhere_else(name, was[1] or ""):
            _tell(f"{name}: as you had it, it is kept as {exercises.keep(file).relative_to(self.root)}")
        file.parent.mkdir(parents=True, exist_ok=True)
        new, old = self.room / "new" / name, self.room / "old" / name
        if was:
            old.parent.mkdir(parents=True, exist_ok=True)
        if _lies(self.root, name) != was or (was and stat.S_ISREG(was[0]) and _is_being_written(file)):
            raise _saved(file)
        try:
            if was:  # whatever lies there by now is taken away, not overwritten; the next call fills the gap
                file.rename(old)
            if entry:
                _put(new, file)
        except (FileExistsError, FileNotFoundError, NotADirectoryError):  # saved, or taken away
            raise _saved(file) from None
        if was and _lies(old.parent, old.name) != was:  # who looks back puts it there again
            raise _saved(file)
        if not entry:
            with contextlib.suppress(OSError):  # until one holds something
                for folder in file.parents:
                    folder.rmdir()

    def note_down(self, todo: dict[str, Entry | None]) -> None:
        """Note what lies where files will be placed, and what comes, for who looks back: see ``_look_back``."""
        for name in (name for name, entry in todo.items() if entry and entry[0].startswith("100")):
            was, new = self.was[name], self.room / "new" / name
            if was and stat.S_ISREG(was[0]):  # who may read and write it stays; whether it is a program is git's
                mode = was[0] & 0o666 | ((was[0] & 0o444) >> 2 if new.stat().st_mode & 0o100 else 0)
                with contextlib.suppress(OSError):  # a file system without such rights
                    new.chmod(mode)
        listed = {name: (_digest(self.was[name]), _digest(_lies(self.room / "new", name))) for name in todo}
        with open(self.room / "listing", "w", encoding="utf-8") as stream:
            json.dump(listed, stream)
            stream.flush()
            os.fsync(stream.fileno())
        (self.room / "listing").replace(self.room / _LISTING)


def _look_back(root: Path, room: Path) -> list[tuple[str, Path, bool]]:
    """Bring back what is in ``room`` alone of the learner's: to its place, or beside what has been saved there since.

    Such is what a program that had it open has written into it; and what was taken away when the update was ended.

    Returns:
        The name of each, where it is by now, and whether it was written since.

    Raises:
        CourseError: one cannot be brought back; the others are, and the room keeps it for the next update.
    """
    try:
        listed = json.loads((room / _LISTING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        do = f"copy what is yours out of {room}, and remove it; then again"
        raise CourseError(f"an update was killed, and its {_LISTING} cannot be read; {do}") from None
    back, stuck = [], []
    for name, (was, came) in listed.items():
        for folder in ("away", "old"):
            try:
                if file := _back(root, room, folder, name, was, came):
                    back.append((name, file[0], file[1]))
            except OSError as error:
                stuck.append(f"{room / folder / name} cannot go back to its place ({error.strerror or error})")
    if stuck:
        raise CourseError(f"{stuck[0]}; mend that, then again; until then it stays there")
    (room / _LISTING).unlink()
    return back


def _back(root: Path, room: Path, folder: str, name: str, was: str, came: str) -> tuple[Path, bool] | None:
    """Bring one file back, if it must be: where it is by now, and whether it was written since."""
    file, kept = root / name, room / folder / name
    try:
        about = kept.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    is_newer = _digest(_lies(room / folder, name)) != (was if folder == "old" else came)
    is_there = os.path.lexists(file)
    if is_there and os.path.samestat(file.lstat(), about):
        return None
    if not is_newer and (is_there or folder == "away" or came == _digest(None)):
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):  # a file has the place of its folder
        file = root / name.replace("/", "_")
    if os.path.lexists(file) and not (
        folder == "old" and _digest(_lies(root, name)) == came and _take(file, room / "away" / name, came)
    ):
        file = _free(file)
    try:
        _put(kept, file)
    except FileExistsError:  # saved just now
        _put(kept, file := _free(file))
    return file, is_newer


def _take(file: Path, to: Path, expected: str) -> bool:
    """Move a file away. False: it is not as ``expected``, such as one that was saved just now, and is there again."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.rename(to)
    except (FileNotFoundError, NotADirectoryError):  # the learner has taken it away
        return False
    if _digest(_lies(to.parent, to.name)) == expected:
        return True
    try:
        _put(to, file)
    except FileExistsError:
        _put(to, other := _free(file))
        _tell(f"{file}: it was saved twice just now; the first of both is {other.name}")
    return False


def _put(source: Path, file: Path) -> None:
    """Move a file to a place where nothing lies. FileExistsError: something does by now, and both stay."""
    try:
        os.link(source, file, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a folder, or a file system without links
        if os.path.lexists(file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(source), None, str(file)) from None
        source.rename(file)
    else:
        source.unlink()


def _digest(lies: Lies | None) -> str:
    return hashlib.sha256(repr(lies).encode("utf-8", "surrogateescape")).hexdigest()


def _tell(line: str) -> None:
    """Say it; an output that is closed or full is no reason to stop."""
    try:
        print(line, flush=True)
    except OSError:  # what is left of it would fail once more as Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _saved(file: Path) -> CourseError:
    return CourseError(f"{file} was saved just now, and stays; run make update again")


def _lies(root: Path, name: str) -> Lies | None:
    """What lies on disk under a name. None: nothing, or a link or a file where the name has a folder."""
    file = root / name
    if any((root / folder).is_symlink() for folder in PurePosixPath(name).parents[:-1]):
        return None
    try:
        mode = file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    return mode, str(file.readlink()) if stat.S_ISLNK(mode) else paths.held(file)


def _is_being_written(file: Path) -> bool:
    """Whether a program has it open to write, as far as this system tells (Linux, and no network's file system)."""
    with contextlib.suppress(AttributeError, OSError), file.open("rb") as stream:
        try:
            fcntl.fcntl(stream, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return True
        fcntl.fcntl(stream, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _clear(folder: Path) -> None:
    """Remove a folder that has nothing but folders in it, and what Python keeps there."""
    for path in sorted((folder, *folder.rglob("*")), reverse=True):
        if path.is_dir():
            path.rmdir()
        elif _is_pythons(path):
            path.unlink()


def _is_pythons(path: Path) -> bool:
    return path.parent.name == "__pycache__"


def _free(file: Path) -> Path:
    """A name that is free, as nbgitpuller gives it: with the time in it."""
    stamp = f"__{datetime.datetime.now():%Y%m%d%H%M%S}"
    names = (f"{file.stem}{stamp}{'_' * bool(n)}{n or ''}{file.suffix}" for n in itertools.count())
    return next(other for name in names if not os.path.lexists(other := file.with_name(name)))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _names(listed: str) -> set[str]:
    return set(listed.split("\0")[:-1])


def _git(root: Path, *words: str, given: str = "", index: Path | None = None, do: str = "see git status") -> str:
    """What git says, byte for byte, to what is ``given``. CourseError: it fails; then ``do`` this.

    A Ctrl-C, or a kill of this program's group, does not reach it: it ends by itself, and leaves no lock.
    """
    if not shutil.which("git"):
        raise CourseError("there is no git here; install it, or unpack the newer release over the course")
    env = os.environ | ({"GIT_INDEX_FILE": str(index)} if index else {})
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*_GIT, *words], cwd=root, env=env, start_new_session=True, **pipes) as run:
        said, errors = run.communicate(given.encode("utf-8", "surrogateescape"))
    _check(run.returncode, words[0], errors, do)
    return said.decode("utf-8", "surrogateescape")


def _check(code: int, word: str, errors: bytes, do: str) -> None:
    """CourseError: git has failed. KeyboardInterrupt: a Ctrl-C has reached it."""
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        lines = errors.decode(errors="replace").splitlines()
        said = [line for line in lines if line and not line.startswith("warning:")]
        blamed = next((line for line in said if re.match("error:|fatal:", line)), said[0] if said else "")
        raise CourseError(f"git {word} failed ({_SECRET.sub('…', blamed) or code}); {do}")


def main() -> str | None:
    """Update the course; returns the line to end with, if it fails."""
    if sys.getfilesystemencoding() != "utf-8":  # as LC_ALL=C has it for whom PYTHONUTF8 is 0: git's names are in UTF-8
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    sys.stdout, sys.stderr = (one or open(os.devnull, "w") for one in (sys.stdout, sys.stderr))  # noqa: SIM115 (closed)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a question mark for what a locale lacks, and no error
    try:
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # else who opens a file while it is looked at would end this
        _tell(update(paths.course_folder("solutions")))
        return None
    except FileNotFoundError:
        return "dltutorial: the folder that you are in is gone; cd into the course's folder"
    except OSError as error:
        return f"dltutorial: cannot use {error.filename or 'a file'} ({error.strerror or error}); mend that, then again"
    except (CourseError, KeyboardInterrupt) as error:
        return f"dltutorial: {str(error) or 'interrupted; nothing that you have made is lost'}"


if __name__ == "__main__":
    sys.exit(main())
