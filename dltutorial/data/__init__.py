"""Data: simulate the weather, store it, and load it in batches.

The files of this folder are these.

    weather.py           get a data set of simulated weather; it is built if it is missing
    simulate.py          simulate years and write them to files
    flow.py              the grid, the units and the physical constants of the simulated atmosphere
    dynamics.py          its equations
    store.py             a data set on disk
    formats.py           one year of snapshots in HDF5, NumPy or Zarr
    writing.py           write a data set in a temporary folder, which then gets its final name
    statistics.py        mean and standard deviation of each channel
    convert.py           write a year in another layout
    check.py             check your own data before training
    loaders.py           load training data, from files on disk to endless batches
    sampling.py          choose the samples of each batch
    augment.py           normalise a sample, and shift it along longitude
    loader_workers.py    start and end the worker processes of a loader
    loader_ladder.py     the data of chapter 03: the same two years in several layouts
    surveys.py           small data sets for studies that train hundreds of networks
    lenses.py            simulated images of gravitational lenses, for these studies
"""
