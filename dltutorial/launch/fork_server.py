"""What the fork server imports before it starts ranks, so that no rank needs to import it.

``local.warm`` names this module to multiprocessing, and nothing else imports it.
"""

import gc

import cloudpickle  # noqa: F401
import numpy as np  # noqa: F401
import torch._dynamo  # the first optimizer imports it, which takes seconds
import torch.distributed  # noqa: F401

from dltutorial.launch import process_group, worker  # noqa: F401

# The garbage collector writes into each object that it examines, so a rank would copy the memory that it shares with
# the fork server. That takes 0.1 s. A frozen object is not examined.
gc.collect()
gc.freeze()
