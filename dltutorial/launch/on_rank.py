"""What a rank of ``launch_on_slurm`` does: ``python -m dltutorial.launch.on_rank FOLDER``, started by srun.

In: the folder's ``call`` and ``setting.json``, Slurm's variables, ``MASTER_ADDR`` and ``MASTER_PORT``. Out: files
``rank-N.value`` or ``rank-N.error`` (whole or not there), ``rank-N.out`` (all that was printed) and, on SIGUSR1,
``rank-N.stack``. Then it waits for the file ``done``, so that no other rank loses a peer, and ends.
"""

import datetime
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

from dltutorial import machine, paths
from dltutorial.launch.rank import describe, packed
from dltutorial.ranks import RankInfo

_POLL_S = 0.1


def main(folder: Path) -> None:
    """Be one rank, from its start to the end of the process."""
    ranks = RankInfo.from_env()
    mine = folder / f"rank-{ranks.rank}"
    out = os.open(mine.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(out, number)
    sys.stdout.reconfigure(line_buffering=True)
    with open(mine.with_suffix(".stack"), "w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        setting = json.loads((folder / "setting.json").read_text())
        try:
            value = _work(ranks, folder, setting)
            _write(mine.with_suffix(".value"), value)
        except BaseException as error:
            _write(mine.with_suffix(".error"), json.dumps(_told(error)).encode())
        until_s = time.monotonic() + setting["timeout_s"]
        while folder.exists() and not (folder / "done").exists() and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        sys.stdout.flush()
        os._exit(0)  # a group that is destroyed while a model is wrapped in DDP can hang


def _work(ranks: RankInfo, folder: Path, setting: dict) -> bytes:
    """Take over the caller's surroundings, join the group, run the function."""
    import cloudpickle
    import torch
    import torch.distributed as dist

    sys.path[:] = setting["path"]
    os.chdir(setting["cwd"])
    machine.use_cores()
    backend, device = setting["backend"], None
    if backend == "auto":
        backend = "nccl" if torch.cuda.device_count() >= ranks.local_world_size else "gloo"
    if backend == "nccl":
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=datetime.timedelta(seconds=setting["timeout_s"] + 60),
        device_id=device,
    )
    function, args, kwargs = cloudpickle.loads((folder / "call").read_bytes())
    value = function(*args, **kwargs)
    return packed(value, "the function returned something", setting["limit_bytes"], cloudpickle.dumps)


def _told(error: BaseException) -> dict:
    """The exception as plain data, without the frames of this module."""
    told = describe(error)
    for link in told["chain"]:
        link["frames"] = [frame for frame in link["frames"] if frame[0] != __file__]
    return told


def _write(file: Path, content: bytes) -> None:
    with paths.atomic(file) as temporary:
        temporary.write_bytes(content)


if __name__ == "__main__":
    # By its name, so that nothing of it lives in __main__, where learners' functions do.
    from dltutorial.launch import on_rank

    on_rank.main(Path(sys.argv[1]))
