"""Wrong answers to chapter 21's exercise, first part: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
class RarePixels:
    def __init__(self, share_K, power):
        self.weight_K = share_K.float() ** power

    def loss(self, logits_BKHW, label_BHW):
        each_BHW = F.cross_entropy(logits_BKHW.float(), label_BHW, reduction="none")
        return (self.weight_K.to(each_BHW.device)[label_BHW] * each_BHW).mean()

    def threshold(self, score_N, there_N):
        best, best_iou = 0.0, -1.0
        for t in score_N.unique().tolist():
            said_N = score_N >= t
            union = (said_N | there_N).sum().item()
            iou = (said_N & there_N).sum().item() / union
            if iou > best_iou:
                best, best_iou = t, iou
        return best
"""
_with = functools.partial(altered, RIGHT)
_LOSS = """        each_BHW = F.cross_entropy(logits_BKHW.float(), label_BHW, reduction="none")
        return (self.weight_K.to(each_BHW.device)[label_BHW] * each_BHW).mean()
"""
_PLAIN = "        return F.cross_entropy(logits_BKHW.float(), label_BHW"

WRONG = [
    ("torch's own weights", _with((_LOSS, f"{_PLAIN}, weight=self.weight_K)\n")), "sum of the weights"),
    ("no weights", _with((_LOSS, f"{_PLAIN})\n")), "same weight"),
    ("a sum", _with(("* each_BHW).mean()", "* each_BHW).sum()")), "A sum grows"),
    ("a sum for each sample", _with(("* each_BHW).mean()", "* each_BHW).sum((1, 2)).mean()")), "A sum grows"),
    ("the share itself", _with(("share_K.float() ** power", "share_K.float() ** -power")), "share to the given power"),
    ("always share^-1", _with(("share_K.float() ** power", "1 / share_K.float()")), "share to the given power"),
    ("always the root", _with(("** power", "** -0.5")), "share to the given power"),
    ("weights of this batch",
     _with(("        return (self.w",
            "        n_K = torch.bincount(label_BHW.flatten(), minlength=3)\n"
            "        self.weight_K = (n_K / n_K.sum()) ** self.power\n        return (self.w"),
           ("        self.weight_K = share_K.float() ** power", "        self.power = power")), None),
    ("weights of mean 1",
     _with(("** power\n", "** power\n        self.weight_K = self.weight_K / (share_K * self.weight_K).sum()\n")),
     "Do not normalise it"),
    ("weights that add up to 1",
     _with(("** power\n", "** power\n        self.weight_K = self.weight_K / self.weight_K.sum()\n")),
     "third of the loss"),
    ("the mean over classes, too", _with((").mean()", ").mean() / len(self.weight_K)")), "a third of the loss"),
    ("the rarest weighs 1",
     _with(("** power\n", "** power\n        self.weight_K = self.weight_K / self.weight_K.max()\n")),
     "Do not normalise it"),
    ("weights onto logits",
     _with(("logits_BKHW.float()", "logits_BKHW.float() * self.weight_K[:, None, None]"),
           ("self.weight_K.to(each_BHW.device)[label_BHW] * each_BHW", "each_BHW")), "not the logits"),
    ("the label's weight onto logits",
     _with(("logits_BKHW.float()", "logits_BKHW.float() * self.weight_K[label_BHW][:, None]"),
           ("self.weight_K.to(each_BHW.device)[label_BHW] * each_BHW", "each_BHW")), "not the logits"),
    ("one weight for all", _with(("[label_BHW]", ".mean()")), "label of each pixel"),
    ("the weight of what is said", _with(("[label_BHW] *", "[logits_BKHW.argmax(1)] *")), "of the predicted class"),
    ("sixteen bits", _with(("logits_BKHW.float()", "logits_BKHW")), "float32 first"),
    ("a number", _with(("* each_BHW).mean()", "* each_BHW).mean().item()")), "No .item()"),
    ("the best accuracy",
     _with(("iou = (said_N & there_N).sum().item() / union", "iou = (said_N == there_N).float().mean().item()")),
     "Intersection over union"),
    ("above, not at", _with(("said_N = score_N >= t", "said_N = score_N > t"), ("/ union", "/ max(1, union)")),
     "score equals t"),
    ("one half", _with(("        return best\n", "        return 0.5\n")), "such as 0.5"),
    ("the largest of equals", _with(("iou > best_iou", "iou >= best_iou")), "the smallest"),
    ("tenths", _with(("score_N.unique().tolist()", "[n / 10 for n in range(10)]"), ("/ union", "/ max(1, union)")),
     "Try every score"),
    ("none until one is better than 0", _with(("0.0, -1.0", "0.0, 0.0")), "small or 0"),
    ("none until one is good", _with(("0.0, -1.0", "score_N.min().item(), 0.1")), "small or 0"),
    ("above 0 only", _with(("in score_N.unique().tolist():", "in score_N[score_N > 0].unique().tolist():")),
     "Try every score"),
]  # fmt: skip
