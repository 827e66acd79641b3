"""Wrong answers to chapter 15's exercise, each a misconception: (label, source, part of the hint expected)."""


def _knobs(text: str) -> str:
    return f"""
def better_recipe(reference, task):
    return dataclasses.replace(reference, {text})
"""


WRONG = [
    ("one knob", _knobs('loader="staged"'), "first knob, not the only one"),
    ("the rate in proportion to any batch", _knobs("batch_size=4096, learning_rate=2.0"), "too large"),
    ("the reference itself", _knobs(""), "at least one knob"),
    ("a batch larger than the data", _knobs("batch_size=10_000"), "cannot be larger than the data"),
    ("a warm-up longer than the run", _knobs("warmup_steps=2_000"), "The warm-up must end"),
    ("a knob of its own", 'def better_recipe(reference, task):\n    return {"data": "valid"}\n', "Only the knobs"),
    ("a batch that ranks cannot share", _knobs("batch_size=63, ranks=2"), "shared by the ranks"),
    ("no recipe", "def better_recipe(reference, task):\n    return 0.25\n", "Return a SolutionRecipe"),
    ("the largest rate learns fastest", _knobs('loader="batched", batch_size=256, learning_rate=8.0, steps=200'),
     "too large"),
    ("it diverges", _knobs('loader="batched", learning_rate=1e30'), "diverges"),
    ("few steps are quick", _knobs('loader="batched", batch_size=256, learning_rate=2**-3, steps=20'),
     "gives up too early"),
    ("a small rate is safe", _knobs('loader="batched", batch_size=256, learning_rate=1e-4, steps=150'), "so small"),
    ("more ranks are sooner", _knobs("ranks=2"), "count device-seconds"),
    ("fewer steps are sooner", _knobs("batch_size=1024, learning_rate=2**-2"), "count seconds, not steps"),
    ("half the bits, half the time", _knobs('precision="bf16"'), "waiting for images"),
    ("a better optimizer", _knobs('optimizer="adamw", learning_rate=2**-9'), "waiting for images"),
]  # fmt: skip
