"""Checks of chapter 21's exercise, first part: a weighted loss that parts of a batch share, and a threshold.

Each case makes pixels of its own, some classes rare, and compares the learner's class with the sums written out.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close

SHARE_K = torch.tensor([0.9, 0.03, 0.07])
_NORMALISED = "Divided by the sum of the weights: each part of a batch has another sum. Divide by the number of pixels."
_PLAIN = "The classes weigh alike: multiply each pixel's cross entropy by its class's weight."
_POWER = "The weight is the share to the power that is given: with −1 the rare weigh most, with 0 all weigh 1."
_ALONE = (
    "The weight is the share to the power and nothing else: do not normalise it, "
    "and multiply the cross entropies by it, not the logits."
)
_THIRD = "A third of it: neither the sum of the weights nor the number of classes divides, but the number of pixels."
_SUM = "A sum grows with the batch; the mean over pixels does not."
_HALF = "Cross entropy in 16 bits loses digits: turn the logits into float32 first."
_LATER = "The label of each pixel picks the weight: weight_K[label]."
_TRIED = "Try every score that occurs, each as its own t; a fixed 0.5 is a threshold of nobody's data."
_IOU = (
    "Intersection over union: hits over hits, false alarms and misses together; right answers elsewhere do not count."
)
_EQUAL = "score >= t counts a pixel whose score is t itself."
_FIRST = "Of thresholds that are equally good, the smallest."
_POOR = "Here the best is poor. Return a score that was given, however small its intersection over union: even 0."


def _pixels(n: int = 4, seed: int = 0, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    label = torch.multinomial(SHARE_K, n * 48, replacement=True, generator=draw).view(n, 6, 8)
    label[0, 0, :3] = torch.tensor([0, 1, 2])
    return scale * torch.randn(n, 3, 6, 8, generator=draw), label


def _right(logits: torch.Tensor, label: torch.Tensor, power: float) -> torch.Tensor:
    each = F.cross_entropy(logits.double(), label, reduction="none")
    return ((SHARE_K.double() ** power)[label] * each).mean()


def _normalisers(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (SHARE_K * weight).sum(), weight.sum(), weight.mean(), weight.max(), weight.min()


def _mistakes(logits: torch.Tensor, label: torch.Tensor, power: float) -> list[tuple]:
    weight, wide = SHARE_K**power, logits.float()
    each = F.cross_entropy(logits.float(), label, reduction="none")
    return [
        (F.cross_entropy(logits.float(), label, weight=weight), _NORMALISED),
        (each.mean(), _PLAIN),
        ((weight[label] * each).sum(), _SUM),
        ((weight[label] * each).sum((1, 2)).mean(), _SUM),
        (_right(logits, label, -power), _POWER),
        (_right(logits, label, -1), _POWER),
        (_right(logits, label, -0.5), _POWER),
        ((each.mean() * weight.mean()), _LATER),
        ((each.mean() * weight.sum()), _LATER),
        *(((weight[label] * each).mean() / by, _ALONE) for by in _normalisers(weight)),
        (F.cross_entropy(wide * weight[:, None, None], label), _ALONE),
        (F.cross_entropy(wide * weight[label][:, None], label), _ALONE),
        (F.cross_entropy(wide + weight.log()[:, None, None], label), _ALONE),
        ((each * weight[logits.argmax(1)]).mean(), "The weight is that of the label, not of what the network says."),
    ]


def _even(fn: Callable) -> None:
    """With power 0 it is the plain mean cross entropy"""
    logits, label = _pixels()
    mistakes = [(_right(logits, label, -1), _POWER), (_right(logits, label, -0.5), _POWER)]
    each = F.cross_entropy(logits, label, reduction="none")
    mistakes += [(each.sum(), _SUM), (each.sum((1, 2)).mean(), _SUM)]
    mistakes += [(each.mean() / 3, _THIRD)]
    expect_close(fn(SHARE_K.clone(), 0).loss(logits, label), _right(logits, label, 0), _POWER, mistakes)


def _weighted(fn: Callable) -> None:
    """With powers −1/2 and −1 rare pixels weigh more"""
    for power in (-0.125, -1.0):
        logits, label = _pixels()
        wanted, mistakes = _right(logits, label, power), _mistakes(logits, label, power)
        expect_close(fn(SHARE_K.clone(), power).loss(logits, label), wanted, "", mistakes)


def _parts(fn: Callable) -> None:
    """The mean over four parts' losses is the loss of the batch"""
    logits, label = _pixels(8, seed=1)
    rule = fn(SHARE_K.clone(), -0.5)
    wanted = _right(logits, label, -0.5)
    parts = [torch.as_tensor(rule.loss(logits[n : n + 2].clone(), label[n : n + 2].clone())) for n in range(0, 8, 2)]
    expect_close(torch.stack(parts).mean(), wanted, _NORMALISED)


def _absent(fn: Callable) -> None:
    """A part without any rare pixel has a finite loss"""
    logits, _ = _pixels(2, seed=2)
    label = torch.zeros(2, 6, 8, dtype=torch.long)
    hint = "Weights are of the training data's shares, not of this batch's: there a class may be missing."
    expect_close(fn(SHARE_K.clone(), -1).loss(logits, label), _right(logits, label, -1), hint, [
        (F.cross_entropy(logits, label), _NORMALISED)
    ])  # fmt: skip


def _slopes(fn: Callable) -> None:
    """Its gradient reaches the logits"""
    logits, label = _pixels(seed=3)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    _right(ours, label, -0.5).backward()
    loss = fn(SHARE_K.clone(), -0.5).loss(theirs, label)
    if not getattr(loss, "requires_grad", False):
        raise Wrong("a loss that can be differentiated", loss, "No .item(), detach() or no_grad on the way.")
    loss.backward()
    expect_close(theirs.grad, ours.grad, "Only the logits are differentiated; the weights are numbers.", atol=1e-6)


def _sixteen_bits(fn: Callable) -> None:
    """Logits in 16 bits lose nothing more"""
    logits, label = _pixels(seed=4, scale=8.0)
    for kind in (torch.bfloat16, torch.float16):
        found = torch.as_tensor(fn(SHARE_K.clone(), -1).loss(logits.to(kind), label)).detach()
        expect_close(found, _right(logits.to(kind), label, -1), _HALF, rtol=1e-4)


def _threshold(fn: Callable) -> None:
    """The threshold has the best intersection over union"""
    draw = torch.Generator().manual_seed(5)
    for n, share in ((60, 0.1), (80, 0.3), (40, 0.03)):
        there = torch.rand(n, generator=draw) < share
        there[0] = True
        score = (0.35 * torch.randn(n, generator=draw) + 0.2 + 0.3 * there).mul(1000).round() / 1000
        values = score.unique()
        said = score >= values[:, None]
        iou = (said & there).sum(1) / (said | there).sum(1)
        above = ((score > values[:, None]) & there).sum(1) / ((score > values[:, None]) | there).sum(1)
        accuracy = (said == there).float().mean(1)
        last = values[(iou == iou.max()).nonzero().max()]
        mistakes = [(last, _FIRST), (values[accuracy.argmax()], _IOU), (values[above.argmax()], _EQUAL), (0.5, _TRIED)]
        got = fn(SHARE_K.clone(), -1).threshold(score.clone(), there.clone())
        expect_close(got, values[iou.argmax()].item(), f"{_TRIED} {_IOU}", mistakes, rtol=1e-5, atol=1e-6)


def _ties(fn: Callable) -> None:
    """Equal scores, and thresholds that are equally good"""
    rule = fn(SHARE_K.clone(), -1)
    score = torch.tensor([0.75, 0.75, 0.25, 0.5, 0.125])
    there = torch.tensor([True, True, False, False, False])
    expect_close(rule.threshold(score, there), 0.75, _EQUAL, [(0.5, _EQUAL)])
    score = torch.tensor([0.25, 0.5, 0.75, 0.875])
    there = torch.tensor([True, False, False, True])  # 2 of 4, and 1 of 2
    expect_close(rule.threshold(score, there), 0.25, _FIRST, [(0.875, _FIRST)])


def _poor(fn: Callable) -> None:
    """The best threshold may be a poor one, or all have 0"""
    rule = fn(SHARE_K.clone(), -1)
    score, there = torch.arange(1, 33) / 32, torch.zeros(32, dtype=torch.bool)
    expect_close(rule.threshold(score.clone(), there.clone()), 1 / 32, f"{_POOR} {_FIRST}")
    there[4] = True  # 1 of 28
    expect_close(rule.threshold(score.clone(), there.clone()), 5 / 32, _POOR)


def _logit_scores(fn: Callable) -> None:
    """Scores may be logits, below 0"""
    score = torch.tensor([-4.0, -3.0, -2.5, -6.0])
    there = torch.tensor([False, True, True, False])
    expect_close(fn(SHARE_K.clone(), -1).threshold(score, there), -3.0, _TRIED)


_HINTS = (
    "Write down the loss of a batch, and of its two halves. When is the mean of the two the first?",
    "What does F.cross_entropy divide by, once it is given weights?",
    "Which thresholds can differ at all, for these pixels?",
)
_CODE = ('each = F.cross_entropy(logits.float(), label, reduction="none")', "for t in score_N.unique().tolist():")
EXERCISE = Exercise(
    name="weighted_loss",
    chapter="21",
    cases=(_even, _weighted, _parts, _absent, _slopes, _sixteen_bits, _threshold, _ties, _poor, _logit_scores),
    hints=_HINTS,
    code=_CODE,
)
