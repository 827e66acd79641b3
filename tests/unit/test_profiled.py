from dltutorial.config import Recipe
from dltutorial.observe import trace
from dltutorial.training import profiled


def test_a_profiled_step_names_its_parts(tiny_data, one_thread):
    recipe = Recipe(n_lat=16, n_lon=24, n_channels=3, dim=16, depth=1, global_batch_size=4, device="cpu")
    step = profiled.training_step(recipe, tiny_data)
    names = {event.name for event in trace.take(step, steps=1, warmup=1).events if event.category == "range"}
    assert {"step", "load", "to device", "forward", "backward", "optimizer"} <= names


def test_what_cannot_be_profiled_gets_one_line(capsys):
    assert profiled.main(["--preset", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith("error: preset 'nonsense'")
