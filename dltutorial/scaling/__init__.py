"""How training scales over ranks, as a model (chapters 08 and 11).

The files of this folder are these.

    collective_cost.py    rounds, messages, bytes and time of each all-reduce
    clusters.py           the time of an all-reduce inside and between nodes
    workloads.py          the work of one rank in a training step
    simulator.py          simulate a training step on many ranks
    fit.py                predict the step time on more ranks from steps on few ranks
    published.py          the simulator beside published runs
"""
