"""The network of all convergence studies, a perceptron with ReLU, for one replica and for R replicas at once.

In: features (B, F) or (R, B, F). Out: logits (B, classes) or (R, B, classes). The initial weights of a replica depend
only on its seed. Source of the initial weights: He et al. 2015 (arXiv:1502.01852).

Legend: R replicas, B images of a batch, N images, F features, H outputs of a layer, C classes. A layer has the shape
(R, inputs, outputs), and its bias (R, 1, outputs).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def network(sizes: Sequence[int], seed: int, gain: float = 1.0) -> nn.Sequential:
    """One replica as a module: linear layers with ReLU between them, with weights as ``nn.Linear`` draws them.

    Args:
        sizes: numbers of features, of outputs of each hidden layer, and of classes.
        seed: of the weights. The global generator of torch does not change.
        gain: factor of the initial weights, but not of the biases. √6 gives the weights of He et al., which are usual
            before ReLU.
    """
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
        bound = n_in**-0.5
        nn.init.uniform_(linear.weight, -gain * bound, gain * bound, generator=generator)
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def stacked(networks: Sequence[nn.Sequential], device: str | torch.device = "cpu") -> list[Tensor]:
    """The weights of R networks, layer by layer.

    Returns:
        Tensors (R, inputs, outputs), (R, 1, outputs), …, which require gradients.
    """
    layers = []
    for modules in zip(*networks, strict=True):
        if isinstance(modules[0], nn.Linear):
            layers.append(torch.stack([linear.weight.detach().T for linear in modules]))
            layers.append(torch.stack([linear.bias.detach()[None] for linear in modules]))
    return [layer.contiguous().to(device).requires_grad_() for layer in layers]


def unstacked(layers: Sequence[Tensor], replica: int) -> nn.Sequential:
    """One of R replicas as a module, with a copy of its weights."""
    modules: list[nn.Module] = []
    for weight_RFH, bias_R1H in zip(layers[::2], layers[1::2], strict=True):
        _, n_in, n_out = weight_RFH.shape
        linear = nn.utils.skip_init(nn.Linear, n_in, n_out, device=weight_RFH.device)
        with torch.no_grad():
            linear.weight.copy_(weight_RFH[replica].T)
            linear.bias.copy_(bias_R1H[replica, 0])
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def logits(layers: Sequence[Tensor], x_RBF: Tensor) -> Tensor:
    """Logits (R, B, C) of R replicas, each of which has its own images."""
    weight_RFH, bias_R1H, *later_layers = layers
    x_RBH = torch.baddbmm(bias_R1H, x_RBF, weight_RFH)
    if not later_layers:
        return x_RBH
    return logits(later_layers, functional.relu(x_RBH))


def shared_logits(layers: Sequence[Tensor], x_NF: Tensor) -> Tensor:
    """Logits (R, N, C) of R replicas that all have the same images, so that their first layers are one matmul."""
    weight_RFH, bias_R1H, *later_layers = layers
    R, F, H = weight_RFH.shape
    weight_FRH = weight_RFH.transpose(0, 1)
    hidden_NRH = (x_NF @ weight_FRH.reshape(F, R * H)).view(-1, R, H)
    hidden_RNH = hidden_NRH.transpose(0, 1) + bias_R1H
    if not later_layers:
        return hidden_RNH
    return logits(later_layers, functional.relu(hidden_RNH))


def losses(logits_RBC: Tensor, y_RB: Tensor) -> Tensor:
    """Mean cross-entropy (R,) of each replica."""
    loss = functional.cross_entropy(logits_RBC.flatten(0, 1), y_RB.flatten(), reduction="none")
    return loss.view_as(y_RB).mean(1)


def accuracies(layers: Sequence[Tensor], x_NF: Tensor, y_N: Tensor) -> Tensor:
    """The share (R,) of the images that each replica classifies correctly; nan if a logit is not finite."""
    if len(layers[0]) == 0:  # no replica trains any more
        return torch.empty(0)
    with torch.no_grad():
        logits_RNC = shared_logits(layers, x_NF)
        correct_R = (logits_RNC.argmax(-1) == y_N).float().mean(1)
        is_finite_R = logits_RNC.isfinite().all(-1).all(-1)
        return correct_R.masked_fill(~is_finite_R, torch.nan)
