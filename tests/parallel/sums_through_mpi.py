"""For mpiexec: names of the course's all-reduces whose sums through MPI are wrong; rank 0 prints them all."""

import torch
from mpi4py import MPI

from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.communicator import Communicator
from dltutorial.comm.mpi import MpiTransport

world = MPI.COMM_WORLD
p, wrong = world.Get_size(), []
for name, run in ALL_REDUCES.items():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((7,), world.Get_rank(), dtype=dtype)
        run(x, Communicator(MpiTransport(world), node_size=2))
        wrong += [] if x.tolist() == [p * (p - 1) / 2] * 7 else [name]
found = world.allgather(wrong)
if world.Get_rank() == 0:
    print("wrong:", [name for names in found for name in names])
