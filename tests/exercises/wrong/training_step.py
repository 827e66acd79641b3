"""Wrong answers to the exercise of chapter 01, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
from torch.nn import functional as F

def training_step(model, x_BCHW, y_BCHW, optimizer):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x_BCHW), y_BCHW)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("a new tensor of the number", "import torch\n" + _with("loss.detach()", "torch.tensor(loss.item())"),
     "waits for a GPU"),
    ("brings it home", _with("loss.detach()", "loss.detach().cpu()"), "waits for a GPU"),
    ("brings it home by name", _with("loss.detach()", 'loss.detach().to("cpu")'), "waits for a GPU"),
    ("no backward", _with("    loss.backward()\n", ""), "did not move"),
    ("no update", _with("    optimizer.step()\n", ""), "did not move"),
    ("gradients never cleared", _with("    optimizer.zero_grad()\n", ""), "Gradients add up"),
    ("cleared between backward and update",
     _with("    optimizer.step()\n", "    optimizer.zero_grad()\n    optimizer.step()\n"), "did not move"),
    ("cleared only afterwards",
     _with("    optimizer.zero_grad()\n", "").replace("    return", "    optimizer.zero_grad()\n    return"),
     "Clear them first"),
    ("updated before backward",
     _with("    loss.backward()\n    optimizer.step()\n", "    optimizer.step()\n    loss.backward()\n"),
     "did not move"),
    ("input and target swapped", _with("F.mse_loss(model(x_BCHW), y_BCHW)", "F.mse_loss(model(y_BCHW), x_BCHW)"),
     "state now"),
    ("sum instead of mean", _with("y_BCHW)\n    loss.b", "y_BCHW, reduction='sum')\n    loss.b"), "not their sum"),
    ("mean over the samples only", _with("y_BCHW)\n    loss.b", "y_BCHW, reduction='sum') / len(x_BCHW)\n    loss.b"),
     "over the samples only"),
    ("loss after the update", _with("return loss.detach()", "return F.mse_loss(model(x_BCHW), y_BCHW).detach()"),
     "after the update"),
    ("a Python number", _with("loss.detach()", "loss.item()"), "wait for a GPU"),
    ("the graph kept alive", _with("return loss.detach()", "return loss"), "Detach"),
    ("the root of the error", _with("return loss.detach()", "return loss.detach().sqrt()"), "without a root"),
    ("absolute errors", RIGHT.replace("mse_loss", "l1_loss"), "Square the errors"),
    ("nothing returned", _with("    return loss.detach()\n", ""), "return missing"),
    ("trained without gradients",
     _with("    loss = F", "    import torch\n    with torch.no_grad():\n        loss = F"), None),
]  # fmt: skip
