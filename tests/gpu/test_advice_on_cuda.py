"""The errors of a GPU, met for real, lead to one sentence of what to do."""

import datetime
import multiprocessing
import time

import pytest
import torch
import torch.distributed as dist

from dltutorial import advice
from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.gpu


def test_a_full_gpu():
    free_bytes, _ = torch.cuda.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        _kept = [torch.empty(free_bytes // 4, dtype=torch.uint8, device="cuda") for _ in range(8)]
    assert advice.of(caught.value).name == "gpu-memory"


def test_tensors_on_two_devices():
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 3, device="cuda") @ torch.ones(3, 4)
    assert advice.of(caught.value).name == "other-device"
    with pytest.raises(TypeError) as caught:
        torch.ones(2, device="cuda").numpy()
    assert advice.of(caught.value).name == "other-device"


def _use_cuda(answer):
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        answer.put((type(error).__name__, str(error)))


def test_cuda_in_a_forked_process():
    torch.ones(1, device="cuda")
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=_use_cuda, args=(answer,))
    process.start()
    assert advice.of_words(*answer.get(timeout=60)).name == "cuda-fork"
    process.join()


def late():
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3, device="cuda"), group=group)
        torch.cuda.synchronize()
    time.sleep(60)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.usefixtures("send_whole")
def test_a_rank_that_waits_in_nccl_for_another():
    with pytest.raises(RankFailed) as caught:
        launch(late, 2, timeout_s=120)
    assert advice.of(caught.value).name in ("collective-timeout", "rank-aborted")  # the watchdog may end the process
