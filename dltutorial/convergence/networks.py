"""The network of all convergence studies, a perceptron with ReLU, alone and as R replicas in one.

In: features (B, F) or (R, B, F). Out: logits (B, classes) or (R, B, classes). A replica's weights depend on its seed
alone.

Legend: R replicas, B images, F features; a layer is (R, inputs, outputs), its bias (R, 1, outputs).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def network(sizes: Sequence[int], seed: int, gain: float = 1.0) -> nn.Sequential:
    """One replica as a module: linear layers of these sizes with ReLU between; weights as ``nn.Linear`` draws them.

    Args:
        sizes: features, widths of the hidden layers, classes.
        seed: of the weights; torch's own generator is left alone.
        gain: times which the weights, not the biases, start; √6 gives those of He et al. 2015 (arXiv:1502.01852),
            usual before ReLU.
    """
    generator = torch.Generator().manual_seed(seed)
    parts: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
        for parameter, bound in ((linear.weight, gain * n_in**-0.5), (linear.bias, n_in**-0.5)):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def stacked(networks: Sequence[nn.Sequential], device: str | torch.device = "cpu") -> list[Tensor]:
    """The weights of R networks, layer by layer: (R, inputs, outputs), (R, 1, outputs), …; they ask for gradients."""
    layers = []
    for parts in zip(*networks, strict=True):
        if isinstance(parts[0], nn.Linear):
            layers.append(torch.stack([part.weight.detach().T for part in parts]))
            layers.append(torch.stack([part.bias.detach()[None] for part in parts]))
    return [layer.contiguous().to(device).requires_grad_() for layer in layers]


def unstacked(layers: Sequence[Tensor], replica: int) -> nn.Sequential:
    """One of R replicas as a module of its own, with a copy of its weights."""
    parts: list[nn.Module] = []
    for weight_RFH, bias_R1H in zip(layers[::2], layers[1::2], strict=True):
        linear = nn.utils.skip_init(nn.Linear, *weight_RFH.shape[1:], device=weight_RFH.device)
        with torch.no_grad():
            linear.weight.copy_(weight_RFH[replica].T)
            linear.bias.copy_(bias_R1H[replica, 0])
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def logits(layers: Sequence[Tensor], x_RBF: Tensor) -> Tensor:
    """Logits (R, B, classes) of R replicas, each with images of its own."""
    for number in range(0, len(layers), 2):
        if number:
            x_RBF = functional.relu(x_RBF)
        x_RBF = torch.baddbmm(layers[number + 1], x_RBF, layers[number])
    return x_RBF


def shared_logits(layers: Sequence[Tensor], x_NF: Tensor) -> Tensor:
    """Logits (R, N, classes) of R replicas that all see the same images: their first layers are one product."""
    weight_RFH, bias_R1H = layers[:2]
    R, F, H = weight_RFH.shape
    hidden_NRH = (x_NF @ weight_RFH.transpose(0, 1).reshape(F, R * H)).view(-1, R, H)
    hidden_RNH = hidden_NRH.transpose(0, 1) + bias_R1H
    return logits(layers[2:], functional.relu(hidden_RNH)) if len(layers) > 2 else hidden_RNH


def losses(logits_RBC: Tensor, y_RB: Tensor) -> Tensor:
    """Mean cross-entropy (R,) of each replica."""
    R, B, C = logits_RBC.shape
    return functional.cross_entropy(logits_RBC.reshape(R * B, C), y_RB.reshape(-1), reduction="none").view(R, B).mean(1)


def accuracies(layers: Sequence[Tensor], x_NF: Tensor, y_N: Tensor) -> Tensor:
    """The part (R,) of the images that each replica classifies rightly; nan where the logits are not finite."""
    if len(layers[0]) == 0:  # everybody left
        return torch.empty(0)
    with torch.no_grad():
        logits_RNC = shared_logits(layers, x_NF)
        right_R = (logits_RNC.argmax(-1) == y_N).float().mean(1)
        return right_R.masked_fill(~logits_RNC.isfinite().all(-1).all(-1), torch.nan)
