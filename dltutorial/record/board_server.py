"""The process behind ``board``: ``python -m dltutorial.record.board_server FOLDER``.

In: a folder with event files, and in ``DLTUTORIAL_BOARD_PATH`` the path below which to answer. Out: TensorBoard on a
free port of the loopback, whose number is the only line on stdout. It ends when stdin closes, so with the process that
started it, however that ends. Source: ``tensorboard.program``.
"""

import contextlib
import os
import select
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

_LOOK_S = 1.0


def main(words: Sequence[str]) -> int:
    """Serve until whoever started this is gone."""
    from tensorboard import program

    parent_pid = os.getppid()
    board = program.TensorBoard()
    flags = ["--host=127.0.0.1", "--port=0", "--load_fast=false", "--reload_interval=5"]
    board.configure(["", f"--logdir={words[0]}", f"--path_prefix={os.environ['DLTUTORIAL_BOARD_PATH']}", *flags])
    with contextlib.redirect_stdout(sys.stderr):
        url = board.launch()
    print(urlsplit(url).port, flush=True)
    while os.getppid() == parent_pid:  # a forked process of the parent may hold our stdin open
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
