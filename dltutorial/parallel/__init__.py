"""Parallel training by hand (chapters 09, 18 and 19). The wrappers of data parallelism are in chapter 09 itself.

The files of this folder are these.

    buckets.py                data parallelism: which gradients share an all-reduce
    tensor_parallel.py        tensor and sequence parallelism
    ring_attention.py         context parallelism: the tokens of a sequence are divided among the ranks
    pipeline_schedules.py     pipeline parallelism: what each rank does, in which order
    pipeline_parallel.py      pipeline parallelism: run a schedule on real ranks
    postponed_gradients.py    postpone the gradients of weights, for the zero-bubble schedule
"""
