"""What a training step on one device needs to know about the machine (chapters 04 to 07).

The files of this folder are these.

    precision.py    which hardware multiplies matrices faster in fewer bits
    compiling.py    what torch.compile needs, and where compiled kernels are kept
"""
