"""Convergence at scale: how many steps a batch size needs, and what decides it (chapters 12 to 15 and 20).

The files of this folder are these.

    networks.py              the network of all studies, for one replica and for R replicas at once
    ensemble.py              train many small networks as one tensor program
    stacked_optimizers.py    optimizers for many networks at once
    sweep.py                 measure how many updates each batch size needs
    curves.py                the number of updates as a function of the batch size, fitted to measurements
    energy.py                measure or estimate the energy of a block of work
"""
