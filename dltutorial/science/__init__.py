"""Deep learning for science: simulated data, and one network for each case (chapters 21 to 23).

The files of this folder are these.

    climate.py                chapter 21: extreme weather as a segmentation
    landcover.py              chapter 21: the classes of multispectral tiles
    survey.py                 chapter 22: images of galaxies, of which few have labels
    cosmology.py              chapter 22: simulate the distribution of matter
    boxes.py                  chapter 22: the files of these simulations, in CosmoFlow's layout
    cosmonet.py               chapter 22: the network for them
    surrogate.py              chapter 23: a simulation of bacteria, which a network replaces
    advection_diffusion.py    chapter 23: an inverse problem with noisy observations
    resnet.py                 residual networks
    arrays.py                 write arrays to HDF5 files, and read them
"""
