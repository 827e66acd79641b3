"""``%%ranks`` with a GPU for each rank: NCCL, tensors that come back, errors and hangs that end."""

import pytest
import torch
from live import notebook

pytestmark = pytest.mark.gpu
IMPORTS = "import torch, torch.distributed as dist"
TOTAL = f"{IMPORTS}\nx = torch.ones(2, device='cuda')\ndist.all_reduce(x)"


@pytest.fixture(scope="module")
def nb(request):
    with notebook(request) as made:
        yield made


def test_each_rank_has_its_gpu_and_its_variables_live_on(nb):
    n = torch.cuda.device_count()
    nb.ok(f"%%ranks {n} --get x\n{TOTAL}")
    done = nb.ok("%%ranks\ndist.get_backend(), torch.cuda.current_device(), x.sum().item()")
    assert done.panes == [f"[rank {rank}] ('nccl', {rank}, {2.0 * n})" for rank in range(n)]
    assert nb.ok("print([t.sum().item() for t in x])").stdout == f"{[2.0 * n] * n}\n"


def test_an_error_of_all_ranks_keeps_the_group(nb):
    nb.ok(f"%%ranks {torch.cuda.device_count()} --restart\n{TOTAL}")
    nb.fails("%%ranks\nundefined", "NameError: .*variables are kept")
    nb.ok("%%ranks\ndist.all_reduce(x)\nx.cpu()")


def test_ranks_that_wait_on_the_gpu_are_ended_and_that_is_told(nb):
    nb.ok(f"%%ranks {torch.cuda.device_count()} --restart\n{TOTAL}")
    told = "RanksHang: rank 0.*waits in synchronize.*variables are lost"
    nb.fails("%%ranks --timeout 15\nif rank == 0:\n    torch.cuda._sleep(10**13)\n    torch.cuda.synchronize()", told)
    assert "new ranks" in nb.ok(f"%%ranks\n{TOTAL}").stdout


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_ranks_error_starts_new_ranks(nb):
    nb.ok(f"%%ranks {torch.cuda.device_count()} --restart\n{TOTAL}")
    cell = "%%ranks\nif rank == 1:\n    1 / 0\ndist.all_reduce(x)\nx.cpu()"
    nb.fails(cell, "rank 1 .*division by zero.*variables are lost")
    nb.ok(f"%%ranks\n{TOTAL}\nx.cpu()")


def test_more_ranks_than_gpus_talk_through_gloo(nb):
    n = torch.cuda.device_count() + 1
    nb.ok(f"%%ranks {n} --restart\n{TOTAL}")
    nb.fails("%%ranks\nif rank == 1:\n    1 / 0\ndist.barrier()", "rank 1 .*division by zero.*variables are kept")
    assert nb.ok("%%ranks\ndist.all_reduce(x)\nx.sum().item()").panes[0] == f"[rank 0] {2.0 * n * n}"
