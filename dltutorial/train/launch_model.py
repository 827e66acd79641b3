"""A step of many operations: started one by one, worked on in turn.

In: how many operations, seconds to start one, seconds to work on one. Out: seconds of the step. On a GPU the processor
starts the next operation while the device works on this one, so the longer of the two counts; a CPU does both itself,
so they add up. Recording and replaying the step makes starting cheaper, and changes nothing else.
"""


def step_s(operations: int, start_s: float, work_s: float, beside: bool) -> float:
    """Seconds until the last operation is done.

    Args:
        operations: in the step.
        start_s: to start one.
        work_s: to work on one.
        beside: whether starting goes on beside the work, as on a GPU.
    """
    if not beside:
        return operations * (start_s + work_s)
    return operations * max(start_s, work_s) + min(start_s, work_s)
