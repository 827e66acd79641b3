"""The ranks that train one model together: ``training.team`` over ``torch.distributed``.

In: a process group, made by ``meeting`` or by ``launch``. Values that a GPU has travel over NCCL, what the processes
themselves agree on (a flag, a name) over gloo: for that nobody has to wait for a GPU.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.parallel.ddp import OverlappedDDP
from dltutorial.ranks import RankInfo
from dltutorial.train.team import Team


class Ranks(Team):
    """All ranks of the process group."""

    def __init__(self, info: RankInfo) -> None:
        """Every rank makes one at the same time."""
        self.rank, self.world_size = info.rank, info.world_size
        self._asked: tuple[dist.Work, Tensor] | None = None
        # A group made for NCCL alone cannot send what is in the processor's memory.
        self._host = None if "cpu:" in dist.get_backend_config() else dist.new_group(backend="gloo")

    def share(self, model: nn.Module) -> None:
        """Train this model together: rank 0's weights now, and after each backward pass the mean of all gradients.

        By the course's own class: torch's sorts its buckets once more by what it saw in the first backward pass. A sum
        of three numbers or more depends on its order, so a resumed run would differ in its last bits.
        """
        group = self._group(next(model.parameters()))
        OverlappedDDP(model, broadcast_buffers=False, process_group=group)  # it lives in the hooks of the parameters

    def mean(self, values_N: Tensor) -> Tensor:
        """Means over the ranks, in float64: sums of float32 are exact there, whatever the order."""
        return (self.sum(values_N.double()) / self.world_size).to(values_N.dtype)

    def sum(self, values: Tensor) -> Tensor:
        """Sums over the ranks, value by value."""
        total = values.clone()
        dist.all_reduce(total, group=self._group(total))
        return total

    def any(self, flag: bool) -> bool:
        """Whether it was true on any rank in the call before this one. The answer has come meanwhile: nobody waits."""
        before, asked = self._asked, torch.tensor(float(flag))
        self._asked = dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=self._host, async_op=True), asked
        if before is None:
            return False
        before[0].wait()
        return bool(before[1])

    def tell(self, value: Any = None) -> Any:
        """What rank 0 says."""
        box = [value]
        dist.broadcast_object_list(box, 0, group=self._host)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """What every rank has, by rank; on others than rank 0 an empty list."""
        found = [None] * self.world_size if self.leads else None
        dist.gather_object(value, found, group=self._host)
        return found or []

    def wait(self) -> None:
        """Until every rank has come here."""
        dist.all_reduce(torch.zeros(1), group=self._host)

    def _group(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self._host if tensor.device.type == "cpu" else None
