"""Wrong answers to the exercise of chapter 10, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
import os
import torch

def save(run, folder):
    names = ("model", "optimizer", "scheduler", "order")
    state = {name: getattr(run, name).state_dict() for name in names}
    state |= {"step": run.step, "random": torch.get_rng_state()}
    temporary = folder / "checkpoint.partial"
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / f"step-{run.step:08d}.pt")
    for old in sorted(folder.glob("step-*.pt"))[:-2]:
        old.unlink()

def load(run, folder):
    for file in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state = torch.load(file, weights_only=True)
        except Exception:
            continue
        for name in ("model", "optimizer", "scheduler", "order"):
            getattr(run, name).load_state_dict(state[name])
        run.step = state["step"]
        torch.set_rng_state(state["random"])
        return

def train(run, folder, every):
    load(run, folder)
    while run.step < run.steps:
        run.update()
        if run.step % every == 0:
            save(run, folder)
"""


_with = functools.partial(altered, RIGHT)


_PARTS = '"model", "optimizer", "scheduler", "order"'
_ORDERLY = RIGHT[RIGHT.index("    temporary =") : RIGHT.index("    for old in")]
_TRY = RIGHT[RIGHT.index("        try:") : RIGHT.index("        for name in")]

_LOOP = "        run.update()\n        if run.step % every == 0:\n            save(run, folder)\n"
_NEXT = ('"step": run.step,', '"step": run.step + 1,')

WRONG = [
    ("syncs what is not flushed", _with(("        file.flush()\n", "")), "Call file.flush() first"),
    ("a temporary file in another file system",
     _with(("import os\n", "import os\nimport shutil\nimport tempfile\nfrom pathlib import Path\n"),
           ('folder / "checkpoint.partial"', 'Path(tempfile.gettempdir(), f"checkpoint-{os.getpid()}.partial")'),
           ("os.replace(temporary,", "shutil.move(temporary,")), "into the same folder"),
    ("removes the old ones first",
     _with(('    for old in sorted(folder.glob("step-*.pt"))[:-2]:\n        old.unlink()\n', ""),
           ("    temporary =",
            '    for old in sorted(folder.glob("step-*.pt"))[:-1]:\n        old.unlink()\n    temporary =')),
     "Remove last"),
    ("a key that is not there, hidden by except",
     _with(("            continue\n        for name in",
            "            continue\n        try:\n            state['optimiser']\n"
            "        except Exception:\n            continue\n        for name in")), "except hides the error"),
    ("forgets the weights", _with((_PARTS, '"optimizer", "scheduler", "order"')), "model.load_state_dict"),
    ("forgets the optimizer", _with((_PARTS, '"model", "scheduler", "order"')), "AdamW starts from zero"),
    ("forgets the schedule", _with((_PARTS, '"model", "optimizer", "order"')), "learning rate continues"),
    ("replays the data from the start", _with((_PARTS, '"model", "optimizer", "scheduler"')), "samples come twice"),
    ("forgets the random state", _with(('        torch.set_rng_state(state["random"])\n', "")), "Dropout draws other"),
    ("seeds the random state anew", _with(('torch.set_rng_state(state["random"])', "torch.manual_seed(0)")), "Dropout"),
    ("forgets the count of updates", _with(('        run.step = state["step"]\n', "")), "number of updates belongs"),
    ("counts the update that comes", _with(_NEXT), "number of updates belongs"),
    ("never loads", _with(("    load(run, folder)\n", "")), "The run started from the beginning"),
    ("never saves", _with(("            save(run, folder)\n", "            pass\n")), "save into the folder"),
    ("saves before the update that it counts",
     _with((_LOOP, "        if run.step % every == 2:\n            save(run, folder)\n        run.update()\n")), None),
    ("writes under the final name", _with((_ORDERLY, '    torch.save(state, folder / f"step-{run.step:08d}.pt")\n')),
     "Write to a temporary name, then rename"),
    ("one file, written over", _with((_ORDERLY, '    torch.save(state, folder / "step-1.pt")\n')),
     "Write to a temporary name, then rename"),
    ("keeps no previous one", _with(("[:-2]", "[:-1]")), "there is no other one"),
    ("keeps all", _with(("[:-2]", "[:0]")), "disks fill up"),
    ("does not sync", _with(("        file.flush()\n        os.fsync(file.fileno())\n", "")), "Call os.fsync"),
    ("syncs after the rename",
     _with(("        file.flush()\n        os.fsync(file.fileno())\n", ""),
           ("    for old in", "    os.fsync(os.open(folder, os.O_RDONLY))\n    for old in")), "Call os.fsync"),
    ("takes the newest, whole or not", _with((_TRY, "        state = torch.load(file, weights_only=True)\n")),
     "If torch.load fails, load the one before"),
    ("gives up when the newest is cut", _with(("            continue\n", "            return\n")),
     "If torch.load fails, load the one before"),
    ("takes the oldest", _with(('glob("step-*.pt"), reverse=True', 'glob("step-*.pt")')), None),
    ("sorts names as text", _with(("{run.step:08d}", "{run.step}"), ("[:-2]", "[:0]")), "Sort by the number"),
    ("a temporary file that looks like a checkpoint", _with(('"checkpoint.partial"', 'f"step-{run.step:08d}.tmp.pt"')),
     "A file without its final name"),
    ("draws random numbers while saving",
     _with(("    state = {name: getattr", "    torch.rand(1)\n    state = {name: getattr")),
     "Saving must not change the run"),
    ("counts by itself", _with(("        run.update()\n", "        run.update()\n        run.step -= 1\n")),
     "run.update() counts"),
    ("stops after what it loaded", _with(("while run.step < run.steps", "while run.step < 4")), "until run.step"),
]  # fmt: skip
