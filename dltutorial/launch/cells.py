"""``%%ranks N``: a notebook's cell that runs on N ranks, whose variables live on until the next.

In: code. Out: what each rank prints and the value of its last line, in a pane of its own; variables, if asked for. The
process group is ready, ``rank`` and ``world_size`` are there. An error of any rank is the cell's error.

    %load_ext dltutorial.launch.cells

    %%ranks 2 --send scale --get total
    import torch, torch.distributed as dist
    total = torch.ones(3) * rank * scale
    dist.all_reduce(total)
    total

Here ``scale`` is a variable of the notebook, ``total`` becomes one: a list of the values by rank. Another N, or
``--restart``, starts new ranks without variables; ``%ranks --stop`` ends them. No magics or ``!`` inside the cell.

ipyparallel, the usual tool, needs 3 to 7 s to start, leaves the other ranks waiting when one raises, and an interrupt
does not free a collective (measured with 9.2). This fork server starts ranks in 0.1 s and has deadlines and endings.
"""

import argparse
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Never

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from dltutorial.errors import CourseError
from dltutorial.launch import server
from dltutorial.launch.local import check_deadline, checked, warm
from dltutorial.launch.output import Output
from dltutorial.launch.panes import Panes
from dltutorial.launch.resident import Cell
from dltutorial.launch.session import Session

_USAGE = "%%ranks N [--timeout S] [--send NAME,…] [--get NAME,…] [--backend gloo] [--restart]"


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What ``%load_ext`` calls: the magic is there, and the fork server starts in the background."""
    shell.register_magics(RanksMagic(shell))
    warm()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """What ``%unload_ext`` calls: the ranks end."""
    shell.magics_manager.registry["RanksMagic"].stop()


@magics_class
class RanksMagic(Magics):
    """The magic and its ranks."""

    def __init__(self, shell: InteractiveShell):
        super().__init__(shell)
        self._session: Session | None = None
        self._server: server.Server | None = None

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Run the cell on N ranks of this machine; their variables stay for the next such cell.

        %%ranks N [--timeout S] [--send NAME,…] [--get NAME,…] [--backend gloo|nccl] [--restart]

        Without N the ranks that are there. --timeout: seconds after which ranks that have not finished are interrupted
        (120). --send: variables of the notebook that every rank gets first. --get: variables of the ranks that the
        notebook gets, each as a list by rank. --restart: new ranks, without variables. A line %ranks takes --restart
        or --stop.
        """
        asked = _parsed(line)
        check_deadline(asked.timeout, "--timeout")
        if cell is None and asked.stop:
            self.stop()
            return
        if asked.stop or (cell is None and not asked.restart):
            raise CourseError("code for the ranks goes below a line %%ranks N; %ranks takes --restart or --stop")
        missing = [name for name in asked.send if name not in self.shell.user_ns]
        if missing:
            raise CourseError(f"--send {missing[0]}: the notebook has no such variable; make it in a cell above")
        session = self._ready(asked)
        if cell is not None:
            sent = {name: self.shell.user_ns[name] for name in asked.send}
            output = (Panes if getattr(self.shell, "kernel", None) else Output)(session.world_size)
            got = session.run(self._named(line, cell, asked.get), asked.timeout, sent, output)
            self.shell.user_ns.update(got)

    def stop(self) -> None:
        """End the ranks and their fork server."""
        if self._session is not None:
            self._session.abandon()
        if self._server is not None:
            self._server.stop()
        self._session = self._server = None

    def _ready(self, asked: argparse.Namespace) -> Session:
        """Ranks as they are asked for: those that are there, or new ones."""
        old = self._session
        if old is None and asked.n_ranks is None:
            raise CourseError("how many ranks? %%ranks 2 starts two")
        n_ranks = old.world_size if asked.n_ranks is None else asked.n_ranks
        backend, why = asked.backend or (old.backend if old else "auto"), ""
        if old is not None and old.is_open:
            why = old.dead()
            if not (why or asked.restart or old.world_size != n_ranks or backend not in (old.backend, "auto")):
                return old
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            backend = checked(n_ranks, asked.timeout, backend)
        for warning in told:  # as a line of its own: no line of the notebook is to blame
            print(warning.message)
        if old is not None:
            (old.close if self._server.is_alive() else old.abandon)()
        if self._server is None or not self._server.is_alive():
            self._server = server.take()
        new = Session(self._server, n_ranks, backend)
        new.open()
        self._session = new
        if old is not None:
            print(f"{n_ranks} new ranks: what earlier cells have made on ranks is gone" + (f" ({why})" if why else ""))
        return new

    def _named(self, line: str, cell: str, get: Sequence[str]) -> Cell:
        """The cell under the name and with the line numbers that it has in the notebook."""
        text = f"%%ranks {line}\n{cell}"
        file = self.shell.compile.cache(text, self._number(), raw_code=text)
        return Cell(f"\n{cell}", file, tuple(get))

    def _number(self) -> int:
        """N of the running cell's ``In[N]``; the shell's own counter is one ahead in some versions of IPython."""
        frame = sys._getframe()
        while frame is not None:
            if name := self.shell.compile.format_code_name(frame.f_code.co_filename):
                return int(name[1].strip("In[]"))
            frame = frame.f_back
        return self.shell.execution_count


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Never:
        raise CourseError(f"%%ranks: {message}; write {_USAGE}") from None


def _parsed(line: str) -> argparse.Namespace:
    """The magic's arguments.

    Raises:
        CourseError: they cannot be understood.
    """
    parser = _Parser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("n_ranks", metavar="N", nargs="?", type=int)
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S")
    parser.add_argument("--backend", choices=["auto", "gloo", "nccl"])
    for option in ("--send", "--get"):
        parser.add_argument(option, action="extend", type=_names, default=[], metavar="NAME,…")
    for option in ("--restart", "--stop"):
        parser.add_argument(option, action="store_true")
    try:
        return parser.parse_args(shlex.split(line))
    except (argparse.ArgumentError, ValueError) as error:
        parser.error(str(error))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if not name.isidentifier()]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no variable's name")
    return names
