"""Ranks that stay between cells, as the kernel sees them: run a cell on all of them, get back what it shows.

In: a cell's source. Out: values by rank; or one exception that tells what became of the ranks too. After an error
they and their variables are kept where that can be; ranks that neither an interrupt nor a cut connection brings back
are ended, all of them, and a new session starts afresh.

Ctrl-C does not raise while a cell runs: it would at any line. It is noted, and the ranks are told.
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dltutorial import interrupts
from dltutorial.errors import CourseError
from dltutorial.launch import failures, server, wire
from dltutorial.launch.local import LIMIT_BYTES, LONGEST_S
from dltutorial.launch.output import Output
from dltutorial.launch.rank import packed
from dltutorial.launch.resident import Cell, stay
from dltutorial.launch.running import Running

KEPT = "The ranks and their variables are kept."
NEW_GROUP = f"{KEPT} Their process group is new: make DDP models and groups of your own again."
LOST = "All ranks were ended and their variables are lost; the next %%ranks cell starts new ones."
_JOIN_S = 60.0
_LOOKS = 50
_PATIENCE_S = ((wire.INTERRUPT, 0.5), (wire.CUT, 3.0))  # for ranks that still run when the cell is over


class Session(Running):
    """Ranks with a namespace that lives on, on a fork server that nobody else uses."""

    GRACE_S = 1.0  # an error that all ranks make costs them nothing, if all have time to make it

    def __init__(self, ranks_of: server.Server, world_size: int, backend: str):
        super().__init__(ranks_of, world_size, LONGEST_S)
        self.world_size, self.backend, self.is_open = world_size, backend, True
        self._got: dict[int, bytearray] = {}
        self._groups, self._interrupts, self._tolerated = 0, 0, float("inf")
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, lambda: self._bell.recv(4096))

    def open(self) -> None:
        """Start the ranks and wait until all are there.

        Raises:
            CourseError: they do not come.
        """
        import cloudpickle

        try:
            self._server.wait_until_ready()
            self.start(cloudpickle.dumps((stay, (LIMIT_BYTES, LONGEST_S), {})), self.backend, LIMIT_BYTES)
            if self._all_return(_JOIN_S):
                return
        except BaseException:
            self.abandon()
            raise
        failed = dict(self._failures)
        self.close()
        if failed:
            raise failures.as_exception(failed.values(), self.world_size)
        raise CourseError(f"{self.world_size} ranks did not find each other within {_JOIN_S:g} s; try again")

    def dead(self) -> str:
        """Why the ranks are no longer all there, if so: one has ended since the last cell, or the fork server has."""
        self._failures.clear()
        try:
            for _ in range(_LOOKS):  # one that prints all the time is no reason to look for ever
                if self._selector.select(0):
                    self._listen(time.monotonic() + 0.1)
        except CourseError as error:
            return str(error)
        return "; ".join(f"rank {failure.rank}: {failure.headline}" for failure in self._failures.values())

    def run(self, cell: Cell, timeout_s: float, sent: Mapping[str, Any], output: Output) -> dict[str, list[Any]]:
        """Run a cell on every rank.

        Args:
            cell: its source, its name, and the variables to give back.
            timeout_s: after this time ranks that have not finished are interrupted.
            sent: variables that every rank gets first.
            output: takes what the ranks print and show.

        Returns:
            The variables asked for: name → values by rank.

        Raises:
            CourseError: a variable cannot be sent or read.
            RankFailed, RanksHang, CellInterrupted: as the names say, with a note on what became of the ranks.
        """
        import cloudpickle

        values = packed(dict(sent), f"{', '.join(sent)} is or holds something", LIMIT_BYTES, cloudpickle.dumps)
        self._output = output
        try:
            self._interrupts = self._tolerated = 0
            with interrupts.noted(self._noted):
                trouble = self._run(cell, timeout_s, values if sent else None)
        except BaseException:  # nobody knows what the ranks are at
            self.abandon()
            raise
        finally:
            self._output.close()
        if trouble is not None:
            raise trouble
        return self._unpacked(cell.get)

    def close(self) -> None:
        """End all ranks, and wait until they have ended."""
        self._tolerated = float("inf")  # ending is never given up
        try:
            if self.is_open:
                self._end(kill=True)
        finally:
            self._let_go()

    def abandon(self) -> None:
        """End the fork server and with it all ranks, whatever state they are in."""
        self._server.stop()
        self._let_go()

    def _let_go(self) -> None:
        if self.is_open:
            self.is_open = False
            self.__exit__()
            self._bell.close()
            self._ringer.close()

    def _run(self, cell: Cell, timeout_s: float, values: bytes | None) -> BaseException | None:
        """Have all ranks run the cell; returns what it ends with, if not well, with a note of what became of them."""
        self._got.clear()
        if values is not None:
            self._tell(range(self.world_size), wire.VALUES, values)
        if values is None or self._all_return(timeout_s):
            self._tell(range(self.world_size), wire.CELL, json.dumps(asdict(cell)).encode())
            self._all_return(timeout_s)
        trouble = self._trouble(timeout_s)
        if trouble is not None:
            trouble.add_note(self._recover())
        else:
            self._show()
            if not self._has_group():
                print(f"The cell has ended the process group. {self._regroup()}")
        for number in range(self.world_size) if self.is_open else ():
            self._drain(number)
        return trouble

    # What the ranks are told, and what they say

    def _tell(self, ranks: Sequence[int], order: bytes, payload: bytes = b"") -> None:
        for number in ranks:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; its exit code says of what
                wire.send(self._ranks[number].control, order, payload)
        if order not in (wire.INTERRUPT, wire.CUT):
            for answers in (self._values, self._failures, self._stacks):
                answers.clear()

    def _all_return(self, timeout_s: float) -> bool:
        """Listen until every rank has answered, one has failed, or the time is over; whether all have returned."""
        self._deadline_s = time.monotonic() + timeout_s
        while self._pending() and self._listen(self._until_s()):
            pass
        return len(self._values) == self.world_size and not self._failures

    def _listen(self, until_s: float) -> bool:
        """Handle what comes next; False when ``until_s`` has passed, or Ctrl-C came more often than is tolerated."""
        refresh_s = time.monotonic() + self._output.refresh()
        super()._listen(min(until_s, refresh_s))
        return time.monotonic() < until_s and self._interrupts <= self._tolerated

    def _take(self, number: int, kind: bytes, payload: bytearray) -> None:
        if kind == wire.GOT:
            self._got[number] = payload
        else:
            super()._take(number, kind, payload)

    def _show(self) -> None:
        for number, answer in sorted(self._values.items()):
            if shown := json.loads(answer)["shown"]:
                self._drain(number)
                self._output.show(number, shown)

    def _has_group(self) -> bool:
        return all(json.loads(answer)["has_group"] for answer in self._values.values())

    def _unpacked(self, names: Sequence[str]) -> dict[str, list[Any]]:
        import cloudpickle

        try:
            by_rank = [cloudpickle.loads(data) for _, data in sorted(self._got.items())]
        except Exception as error:
            raise CourseError(
                f"{', '.join(names)} cannot be read here ({type(error).__name__}: {error}); get numbers, arrays, "
                "tensors or plain objects"
            ) from None
        return {name: [values[name] for values in by_rank] for name in names}

    # What goes wrong

    def _trouble(self, timeout_s: float) -> BaseException | None:
        """The exception that the cell ends with, if it does; afterwards one Ctrl-C is forgiven."""
        interrupted, self._tolerated = self._interrupts > 0, 1
        waiting = self._pending()
        if self._failures:
            for number, failure in self._failures.items():
                if not failure.is_effect:
                    self._output.mark(number, "failed")
            return failures.as_exception(self._failures.values(), self.world_size)
        if waiting:
            self._ask_where(waiting)
            for number in waiting:
                self._output.mark(number, "interrupted" if interrupted else "hangs")
            stacks = self._stacks_of(waiting)
            if not interrupted:
                return failures.hang(timeout_s, stacks, self.world_size, "--timeout")
            return failures.CellInterrupted(f"the cell was interrupted\n\n{failures.places(stacks, self.world_size)}")
        return failures.CellInterrupted("the cell was interrupted as it ended") if interrupted else None

    def _recover(self) -> str:
        """Bring back ranks that still run; if they do not come, end all. Returns what became of them."""
        told: set[bytes] = set()
        for order, patience_s in _PATIENCE_S:
            if waiting := self._pending():
                told.add(order)
                self._tell(waiting, order)
                until_s = time.monotonic() + patience_s
                while self._pending() and self._listen(until_s):
                    pass
        if self._pending() or len(self._alive) < self.world_size or self._interrupts > 1:
            return self._give_up()
        return KEPT if self._agree() and wire.CUT not in told else self._regroup()

    def _agree(self) -> bool:
        """Whether all have returned, or raised the same at the same line: then all have called the same collectives."""
        failed = list(self._failures.values())
        ends = {(failure.kind, failure.frames, failure.is_effect) for failure in failed}
        alike = not ends or (len(ends) == 1 and not failed[0].is_effect and failed[0].kind != "KeyboardInterrupt")
        return alike and len(failed) in (0, self.world_size)

    def _regroup(self) -> str:
        """Have all ranks make a new group. A group of nccl, once its ranks disagree, may hang as it ends: give up."""
        if self.backend == "nccl":
            return self._give_up()
        self._groups += 1
        join = {"backend": self.backend, "name": f"group {self._groups}"}
        self._tell(range(self.world_size), wire.REJOIN, json.dumps(join).encode())
        return NEW_GROUP if self._all_return(_JOIN_S) else self._give_up()

    def _give_up(self) -> str:
        self.close()
        return LOST

    def _noted(self) -> None:
        """Ctrl-C came: count it and wake the loop."""
        self._interrupts += 1
        with contextlib.suppress(OSError):
            self._ringer.send(b"!")
