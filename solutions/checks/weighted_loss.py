"""Checks of the first part of chapter 21's exercise: a class-weighted loss, and a threshold.

The answer is a class with a ``loss`` and a ``threshold``. The weight of a pixel is the share of its class in the
training data to a given power. The loss is the mean over the pixels, so that the mean of the losses of several
micro-batches is the loss of the batch. The threshold maximises the intersection over union of one class. The checks
draw pixels, some of rare classes, and compare both with a direct computation in float64.

Legend: B images, K classes, H × W pixels, N pixels with a score, T thresholds.

Source: Kurth et al. 2018, arXiv:1810.01993
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close

SHARE_K = torch.tensor([0.9, 0.03, 0.07])
_NORMALISED = "Divided by the sum of the weights: each part of a batch has another sum. Divide by the number of pixels."
_PLAIN = "All classes have the same weight. Multiply the cross entropy of each pixel by the weight of its class."
_POWER = "The weight is the share to the given power. With −1, rare classes weigh most. With 0, each weight is 1."
_ALONE = (
    "The weight is only the share to the given power. Do not normalise it. "
    "Multiply the cross entropies by it, and not the logits."
)
_THIRD = "This is a third of the loss. Divide by the number of pixels, and not by the sum of the weights or by K."
_SUM = "A sum grows with the batch. Compute the mean over all pixels."
_HALF = "The cross entropy of 16-bit logits loses digits. Convert the logits to float32 first."
_LATER = "The label of each pixel selects its weight: weight_K[label]."
_TRIED = "Try every score that occurs as t. A fixed threshold such as 0.5 does not depend on the data."
_IOU = "Intersection over union is hits / (hits + false alarms + misses). Correct background pixels do not count."
_EQUAL = "With score >= t, a pixel whose score equals t is predicted, too."
_FIRST = "If several thresholds are equally good, return the smallest."
_POOR = "Here, the best intersection over union is small or 0. Return the best score that occurs in any case."
_LABEL = "Use the weight of the label, and not the weight of the predicted class."
_ABSENT = "Weights are of the training data's shares, not of this batch's: there a class may be missing."


def _draw_pixels(n: int = 4, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return random logits, (B, K, H, W), and labels, (B, H, W), which contain each class."""
    generator = torch.Generator().manual_seed(seed)
    label_BHW = torch.multinomial(SHARE_K, n * 48, replacement=True, generator=generator).view(n, 6, 8)
    label_BHW[0, 0, :3] = torch.tensor([0, 1, 2])
    return scale * torch.randn(n, 3, 6, 8, generator=generator), label_BHW


def _entropies(logits_BKHW: Tensor, label_BHW: Tensor) -> Tensor:
    """Return the cross entropy of each pixel."""
    return F.cross_entropy(logits_BKHW, label_BHW, reduction="none")


def _loss(logits_BKHW: Tensor, label_BHW: Tensor, power: float) -> Tensor:
    """Return the correct loss."""
    weight_K = SHARE_K.double() ** power
    return (weight_K[label_BHW] * _entropies(logits_BKHW.double(), label_BHW)).mean()


def _mistakes(logits_BKHW: Tensor, label_BHW: Tensor, power: float) -> list[tuple[Tensor, str]]:
    """Return the losses of known mistakes."""
    weight_K = SHARE_K**power
    logits = logits_BKHW.float()
    entropy_BHW = _entropies(logits, label_BHW)
    weighted_BHW = weight_K[label_BHW] * entropy_BHW
    normalisers = [(SHARE_K * weight_K).sum(), weight_K.sum(), weight_K.mean(), weight_K.max(), weight_K.min()]
    return [
        (F.cross_entropy(logits, label_BHW, weight=weight_K), _NORMALISED),
        (entropy_BHW.mean(), _PLAIN),
        (weighted_BHW.sum(), _SUM),
        (weighted_BHW.sum((1, 2)).mean(), _SUM),
        *((_loss(logits_BKHW, label_BHW, other), _POWER) for other in (-power, -1, -0.5)),
        (entropy_BHW.mean() * weight_K.mean(), _LATER),
        (entropy_BHW.mean() * weight_K.sum(), _LATER),
        *((weighted_BHW.mean() / normaliser, _ALONE) for normaliser in normalisers),
        (F.cross_entropy(logits * weight_K[:, None, None], label_BHW), _ALONE),
        (F.cross_entropy(logits * weight_K[label_BHW][:, None], label_BHW), _ALONE),
        (F.cross_entropy(logits + weight_K.log()[:, None, None], label_BHW), _ALONE),
        ((entropy_BHW * weight_K[logits_BKHW.argmax(1)]).mean(), _LABEL),
    ]


def _make(fn: Callable, power: float) -> Any:
    """Return an instance of the learner's class."""
    return fn(SHARE_K.clone(), power)


def _check_power_of_zero(fn: Callable) -> None:
    """With power 0 it is the plain mean cross entropy"""
    logits, label = _draw_pixels()
    entropy_BHW = _entropies(logits, label)
    mistakes = [
        (_loss(logits, label, -1), _POWER),
        (_loss(logits, label, -0.5), _POWER),
        (entropy_BHW.sum(), _SUM),
        (entropy_BHW.sum((1, 2)).mean(), _SUM),
        (entropy_BHW.mean() / 3, _THIRD),
    ]
    expect_close(_make(fn, 0).loss(logits, label), _loss(logits, label, 0), _POWER, mistakes)


def _check_negative_powers(fn: Callable) -> None:
    """With powers −1/2 and −1 rare pixels weigh more"""
    for power in (-0.125, -1.0):
        logits, label = _draw_pixels()
        expected, mistakes = _loss(logits, label, power), _mistakes(logits, label, power)
        expect_close(_make(fn, power).loss(logits, label), expected, "", mistakes)


def _check_micro_batches(fn: Callable) -> None:
    """The mean over four parts' losses is the loss of the batch"""
    logits, label = _draw_pixels(8, seed=1)
    answer = _make(fn, -0.5)
    losses = []
    for begin in range(0, 8, 2):
        part = slice(begin, begin + 2)
        losses.append(torch.as_tensor(answer.loss(logits[part].clone(), label[part].clone())))
    expect_close(torch.stack(losses).mean(), _loss(logits, label, -0.5), _NORMALISED)


def _check_absent_class(fn: Callable) -> None:
    """A part without any rare pixel has a finite loss"""
    logits, _ = _draw_pixels(2, seed=2)
    label = torch.zeros(2, 6, 8, dtype=torch.long)
    mistakes = [(F.cross_entropy(logits, label), _NORMALISED)]
    expect_close(_make(fn, -1).loss(logits, label), _loss(logits, label, -1), _ABSENT, mistakes)


def _check_gradient(fn: Callable) -> None:
    """Its gradient reaches the logits"""
    drawn, label = _draw_pixels(seed=3)
    expected_logits, logits = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    _loss(expected_logits, label, -0.5).backward()
    loss = _make(fn, -0.5).loss(logits, label)
    if not getattr(loss, "requires_grad", False):
        raise Wrong("a loss that can be differentiated", loss, "No .item(), detach() or no_grad on the way.")
    loss.backward()
    hint = "Only the logits are differentiated; the weights are numbers."
    expect_close(logits.grad, expected_logits.grad, hint, atol=1e-6)


def _check_sixteen_bits(fn: Callable) -> None:
    """Logits in 16 bits lose nothing more"""
    drawn, label = _draw_pixels(seed=4, scale=8.0)
    for dtype in (torch.bfloat16, torch.float16):
        logits = drawn.to(dtype)
        loss = torch.as_tensor(_make(fn, -1).loss(logits, label)).detach()
        expect_close(loss, _loss(logits, label, -1), _HALF, rtol=1e-4)


def _check_threshold(fn: Callable) -> None:
    """The threshold has the best intersection over union"""
    generator = torch.Generator().manual_seed(5)
    for n, share in ((60, 0.1), (80, 0.3), (40, 0.03)):
        there_N = torch.rand(n, generator=generator) < share
        there_N[0] = True
        noise_N = torch.randn(n, generator=generator)
        score_N = (0.35 * noise_N + 0.2 + 0.3 * there_N).mul(1000).round() / 1000
        _check_best_threshold(fn, score_N, there_N)


def _check_best_threshold(fn: Callable, score_N: Tensor, there_N: Tensor) -> None:
    """The threshold of these scores must be the smallest of those with the best intersection over union."""
    threshold_T = score_N.unique()
    predicted_TN = score_N >= threshold_T[:, None]
    iou_T = _intersection_over_union(predicted_TN, there_N)
    iou_without_equal_T = _intersection_over_union(score_N > threshold_T[:, None], there_N)
    accuracy_T = (predicted_TN == there_N).float().mean(1)
    largest = threshold_T[iou_T == iou_T.max()].max()
    mistakes = [
        (largest, _FIRST),
        (threshold_T[accuracy_T.argmax()], _IOU),
        (threshold_T[iou_without_equal_T.argmax()], _EQUAL),
        (0.5, _TRIED),
    ]
    threshold = _make(fn, -1).threshold(score_N.clone(), there_N.clone())
    expected = threshold_T[iou_T.argmax()].item()
    expect_close(threshold, expected, f"{_TRIED} {_IOU}", mistakes, rtol=1e-5, atol=1e-6)


def _intersection_over_union(predicted_TN: Tensor, there_N: Tensor) -> Tensor:
    return (predicted_TN & there_N).sum(1) / (predicted_TN | there_N).sum(1)


def _check_equal_scores(fn: Callable) -> None:
    """Equal scores, and thresholds that are equally good"""
    answer = _make(fn, -1)
    score_N = torch.tensor([0.75, 0.75, 0.25, 0.5, 0.125])
    there_N = torch.tensor([True, True, False, False, False])
    expect_close(answer.threshold(score_N, there_N), 0.75, _EQUAL, [(0.5, _EQUAL)])
    score_N = torch.tensor([0.25, 0.5, 0.75, 0.875])
    there_N = torch.tensor([True, False, False, True])  # 2 of 4 with threshold 0.25, and 1 of 2 with 0.875
    expect_close(answer.threshold(score_N, there_N), 0.25, _FIRST, [(0.875, _FIRST)])


def _check_poor_best(fn: Callable) -> None:
    """The best threshold may be a poor one, or all have 0"""
    answer = _make(fn, -1)
    score_N = torch.arange(1, 33) / 32
    there_N = torch.zeros(32, dtype=torch.bool)
    expect_close(answer.threshold(score_N.clone(), there_N.clone()), 1 / 32, f"{_POOR} {_FIRST}")
    there_N[4] = True  # the best intersection over union is 1 of 28
    expect_close(answer.threshold(score_N.clone(), there_N.clone()), 5 / 32, _POOR)


def _check_negative_scores(fn: Callable) -> None:
    """Scores may be logits, below 0"""
    score_N = torch.tensor([-4.0, -3.0, -2.5, -6.0])
    there_N = torch.tensor([False, True, True, False])
    expect_close(_make(fn, -1).threshold(score_N, there_N), -3.0, _TRIED)


EXERCISE = Exercise(
    name="weighted_loss",
    chapter="21",
    cases=(
        _check_power_of_zero,
        _check_negative_powers,
        _check_micro_batches,
        _check_absent_class,
        _check_gradient,
        _check_sixteen_bits,
        _check_threshold,
        _check_equal_scores,
        _check_poor_best,
        _check_negative_scores,
    ),
    hints=(
        "Write the loss of a batch and of its halves as formulas. When is their mean the loss of the batch?",
        "What does F.cross_entropy divide by if it has the argument weight?",
        "Between two neighbouring scores, the prediction does not change. Which thresholds are enough?",
    ),
    code=('each = F.cross_entropy(logits.float(), label, reduction="none")', "for t in score_N.unique().tolist():"),
)
