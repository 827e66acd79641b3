"""Wrong answers to the exercise of chapter 09, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
class Averager:
    def __init__(self, buckets, start, n):
        self.buckets, self.start, self.world_size = buckets, start, n
        self.bucket_of = {p: index for index, bucket in enumerate(buckets) for p in bucket}
        self.reset()

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []

    def send_next(self):
        bucket = self.buckets[len(self.started)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        row = torch.cat([gradient.flatten() for gradient in gradients])
        self.started.append((row, self.start(row)))

    def on_gradient(self, parameter):
        self.missing[self.bucket_of[parameter]] -= 1
        while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
            self.send_next()

    def finish(self):
        while len(self.started) < len(self.buckets):
            self.send_next()
        for bucket, (row, handle) in zip(self.buckets, self.started):
            handle.wait()
            row = row / self.world_size
            for parameter, piece in zip(bucket, row.split([p.numel() for p in bucket])):
                parameter.grad = piece.view_as(parameter)
        self.reset()
"""
SENDS = """        while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
            self.send_next()
"""
REST = """        while len(self.started) < len(self.buckets):
            self.send_next()
"""


def _with(*changes: tuple[str, str]) -> str:
    source = RIGHT
    for old, new in changes:
        assert old in source
        source = source.replace(old, new, 1)
    return source


OUT_OF_TURN = """
        index = self.bucket_of[parameter]
        if not self.missing[index]:
            bucket = self.buckets[index]
            row = torch.cat([p.grad.flatten() for p in bucket])
            self.sent[index] = (row, self.start(row))
"""
WRONG = [
    ("zeros on the CPU, whatever the parameter's device",
     _with(("[torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]",
            "[torch.zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad for p in bucket]")),
     "torch.zeros_like(p)"),
    ("zeros of float32, whatever the parameter's dtype", _with(("torch.zeros_like(p) if", "torch.zeros(p.numel()) if")),
     "torch.zeros_like(p)"),
    ("any full bucket sends the next one",
     _with((SENDS, "        if not self.missing[self.bucket_of[parameter]]:\n            self.send_next()\n")),
     "left when another one was full"),
    ("one bucket at most in each call",
     _with((SENDS, SENDS.replace("while", "if"))),
     "use while, not if"),
    ("the sum", _with(("row / self.world_size", "row")), "That is the sum"),
    ("divided twice", _with(("row / self.world_size", "row / self.world_size**2")), "Divided twice"),
    ("never waits", _with(("            handle.wait()\n", "")), "call wait() on every handle"),
    ("waits too late",
     _with(("            handle.wait()\n", ""),
           ("                parameter.grad = piece.view_as(parameter)\n",
            "                parameter.grad = piece.view_as(parameter)\n            handle.wait()\n")),
     "after wait(), not before"),
    ("waits in the hook",
     _with(("self.started.append((row, self.start(row)))",
            "self.started.append((row, self.start(row)))\n        self.started[-1][1].wait()"),
           ("            handle.wait()\n", "")), "Wait in finish()"),
    ("nothing copied back", _with(("parameter.grad = piece.view_as(parameter)", "pass")), "came back to .grad"),
    ("a name instead of .grad", _with(("parameter.grad = piece", "parameter = piece")), "came back to .grad"),
    ("all sent after the backward pass", _with((SENDS, "        pass\n")), "Call start() in on_gradient"),
    ("one message for each gradient",
     _with((SENDS, "        row = parameter.grad.flatten()\n        self.started.append((row, self.start(row)))\n")),
     "left with the first gradient"),
    ("one message for all",
     _with(("        self.buckets, self.start, self.world_size = buckets, start, n\n",
            "        self.buckets, self.start, self.world_size = [sum(buckets, [])], start, n\n"),
           ("enumerate(buckets)", "enumerate(self.buckets)")), "All gradients went as one message"),
    ("a full bucket leaves out of turn",
     _with((SENDS, OUT_OF_TURN), ("        self.started = []\n", "        self.started, self.sent = [], {}\n"),
           (REST, "        self.started = [self.sent[index] for index in range(len(self.buckets))]\n")),
     "Bucket 1 waits for bucket 0"),
    ("a row in the order of arrival",
     _with(("        self.started = []\n", "        self.started, self.came = [], [[] for _ in self.buckets]\n"),
           ("        self.missing[self.bucket_of[parameter]] -= 1\n",
            "        self.missing[self.bucket_of[parameter]] -= 1\n"
            "        self.came[self.bucket_of[parameter]].append(parameter)\n"),
           ("        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]\n",
            "        came = self.came[len(self.started)]\n"
            "        gradients = [p.grad for p in came + [p for p in bucket if not any(p is c for c in came)]]\n"
            "        gradients = [torch.zeros(8) if g is None else g for g in gradients]\n"),
           ("zip(self.buckets, self.started)", "zip(self.came, self.started)")), "must not depend on that"),
    ("a bucket that is never full is not sent", _with((REST, "")), "finish() has to send what is left"),
    ("no gradient, no place in the row",
     _with(("[torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]",
            "[p.grad for p in bucket if p.grad is not None]")), "zeros for one that did not come"),
    ("the mean only where there was a gradient",
     _with(("                parameter.grad = piece.view_as(parameter)\n",
            "                if parameter.grad is not None:\n"
            "                    parameter.grad = piece.view_as(parameter)\n")), "even if it had none itself"),
    ("no fresh start",
     _with(("parameter.grad = piece.view_as(parameter)\n        self.reset()\n",
            "parameter.grad = piece.view_as(parameter)\n")), "starts afresh"),
    ("counts down for ever",
     _with(("                parameter.grad = piece.view_as(parameter)\n        self.reset()\n",
            "                parameter.grad = piece.view_as(parameter)\n        self.started = []\n")),
     "starts afresh"),
    ("flat gradients", _with(("piece.view_as(parameter)", "piece")), None),
]  # fmt: skip
