"""What TensorBoard's event files hold."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder):
    """Name → (step, value) of every scalar in the event files of a run's folder."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
