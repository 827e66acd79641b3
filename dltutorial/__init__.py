"""Hands-on deep learning at scale: the helper library behind the notebooks.

    train.py          train the weather model, in one process or on many ranks
    checkpoint.py     its checkpoints
    distributed.py    how its ranks share the work
    cli.py            the command line ``dltutorial``
    config.py         presets, the sizes for each kind of machine
    machine.py        what this machine has

    data/             simulate, store and load data
    models/           the vision transformer
    step/             precision and compilers
    profile/          measure time, memory and bottlenecks
    launch/           start ranks, and a Slurm cluster, on this machine
    parallel/         tensor, sequence, context and pipeline parallelism by hand
    scaling/          models of the time on many ranks
    optim/            optimizers and schedules
    convergence/      how many updates a batch size needs
    science/          the science cases
    record/           records, figures and tables
    course/           claims, checks of exercises, and the runner of notebooks

Nothing heavy is imported here: ``import dltutorial`` takes milliseconds and loads no torch.
"""

__version__ = "0.6.0"
