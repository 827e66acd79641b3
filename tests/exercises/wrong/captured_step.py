"""Wrong answers to the exercise of chapter 06, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
def make_captured_step(step, example_x, example_y, n_warmup):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(n_warmup):
            step(example_x, example_y)
    torch.cuda.current_stream().wait_stream(side)
    static_x, static_y = example_x.clone(), example_y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_loss = step(static_x, static_y)

    def captured_step(x, y):
        nonlocal static_x, static_y, static_loss
        if x.shape != static_x.shape or y.shape != static_y.shape:
            raise ValueError("another shape")
        static_x.copy_(x)
        static_y.copy_(y)
        graph.replay()
        return static_loss.clone()

    captured_step.keeps = step
    return captured_step
"""
COPIES = "        static_x.copy_(x)\n        static_y.copy_(y)\n"
WAIT = "    side.wait_stream(torch.cuda.current_stream())\n"
WARM_UP = """    with torch.cuda.stream(side):
        for _ in range(n_warmup):
            step(example_x, example_y)
"""
CHECK = """        if x.shape != static_x.shape or y.shape != static_y.shape:
            raise ValueError("another shape")
"""
CAPTURE = """    with torch.cuda.graph(graph):
        static_loss = step(static_x, static_y)
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("nothing copied in", _with(COPIES, ""), "again and again"),
    ("names rebound instead of memory filled", _with(COPIES, "        static_x, static_y = x, y\n"), "again and again"),
    ("only the input copied", _with("        static_y.copy_(y)\n", ""), "x is new, y is not"),
    ("only the target copied", _with("        static_x.copy_(x)\n", ""), "y is new, x is not"),
    ("copied after the replay", _with(COPIES + "        graph.replay()\n", "        graph.replay()\n" + COPIES),
     "lag one batch behind"),
    ("the static loss itself returned", _with("static_loss.clone()", "static_loss"), "Return a copy"),
    ("a Python number returned", _with("static_loss.clone()", "static_loss.item()"), "wait for the device"),
    ("no warm-up", _with(WARM_UP, ""), "every replay resets the state"),
    ("one warm-up step", _with("range(n_warmup)", "range(1)"), "n_warmup is 3"),
    ("warm-up on the ordinary stream",
     _with(WARM_UP, "    for _ in range(n_warmup):\n        step(example_x, example_y)\n"), "belongs on a side stream"),
    (
        "captured in every warm-up step",
        _with(
            WARM_UP,
            WARM_UP + "    for _ in range(2):\n        with torch.cuda.graph(torch.cuda.CUDAGraph()):\n"
            "            step(example_x, example_y)\n",
        ),
        "Capture once",
    ),
    (
        "captured inside the warm-up",
        _with(
            WARM_UP,
            WARM_UP
            + "        with torch.cuda.graph(torch.cuda.CUDAGraph()):\n            step(example_x, example_y)\n",
        ),
        "End the warm-up first",
    ),
    ("replayed at once", _with(CAPTURE, CAPTURE + "    graph.replay()\n"), "One update too many"),
    ("nothing captured", _with(CAPTURE, "    static_loss = None\n"), "Nothing was captured"),
    ("captured anew in every step",
     _with("        graph.replay()\n",
           "        with torch.cuda.graph(graph):\n            static_loss = step(static_x, static_y)\n"
           "        graph.replay()\n"), "capture once"),
    ("never replayed",
     _with("        graph.replay()\n        return static_loss.clone()\n", "        return step(x, y)\n"),
     "Only graph.replay()"),
    ("the caller's tensors as buffers", _with("example_x.clone(), example_y.clone()", "example_x, example_y"),
     "Let the buffers be clones"),
    ("shapes not compared", _with(CHECK, ""), "spreads a single sample"),
    ("only lengths compared", _with(CHECK, CHECK.replace("shape", "size(0)")), "not their first number"),
    ("only len of x",
     _with(CHECK, CHECK.replace("x.shape != static_x.shape or y.shape != static_y.shape", "len(x) != len(static_x)")),
     "A wrong y alone"),
    ("only x compared", _with(CHECK, CHECK.replace(" or y.shape != static_y.shape", "")), "A wrong y alone"),
    ("only y compared", _with(CHECK, CHECK.replace("x.shape != static_x.shape or ", "")), "A wrong x alone"),
    ("numbers counted", _with(CHECK, CHECK.replace("shape", "numel()")), "not how many numbers"),
    ("numbers of x counted",
     _with(CHECK,
           CHECK.replace("x.shape != static_x.shape or y.shape != static_y.shape", "x.numel() != static_x.numel()")),
     "A wrong y alone"),
    ("a failed assertion instead",
     _with(CHECK, "        assert x.shape == static_x.shape and y.shape == static_y.shape\n"),
     "Compare the shapes before"),
    ("the step is not kept", _with("    captured_step.keeps = step\n", ""), "captured_step.keeps = step"),
    ("the side stream does not wait", _with(WAIT, ""), "wait_stream() first"),
    ("the loss of the capture returned", _with("return captured_step\n", "return static_loss\n"), "not its result"),
]  # fmt: skip
