"""Judge a forecast against the two simplest ones: nothing changes (persistence), and the average state (climatology).

Legend: N samples in the split, B in a batch, C channels, H × W grid points.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dltutorial.data.loaders import Pairs
from dltutorial.train.metrics import anomaly_correlation, rmse, row_weights
from dltutorial.train.team import ALONE, Team


@dataclass(frozen=True)
class Scores:
    """Means over the samples of a split, in units of each channel's standard deviation over the training years.

    Attributes:
        rmse_C, persistence_rmse_C, climatology_rmse_C: errors of the model and of the two simple forecasts.
        correlation_C, persistence_correlation_C: anomaly correlations.
        channels: names of the channels.
    """

    rmse_C: Tensor
    persistence_rmse_C: Tensor
    climatology_rmse_C: Tensor
    correlation_C: Tensor
    persistence_correlation_C: Tensor
    channels: tuple[str, ...]

    @property
    def rmse_ratio(self) -> float:
        """Mean over channels of the model's error relative to persistence; below 1 the model is better."""
        return (self.rmse_C / self.persistence_rmse_C).mean().item()

    def scalars(self) -> dict[str, float]:
        """The figures a tracker logs."""
        return {
            "valid/rmse": self.rmse_C.mean().item(),
            "valid/rmse_ratio_to_persistence": self.rmse_ratio,
            "valid/anomaly_correlation": self.correlation_C.mean().item(),
        }


@torch.inference_mode()
def evaluate(model: nn.Module, pairs: Pairs, batch_size: int = 16, team: Team = ALONE) -> Scores:
    """Forecast every pair of a split once and score it. The model is left in the mode it was found in.

    The ranks of a team share the batches; each gets the scores of all, the very ones that one rank alone would find.
    """
    split, device = pairs.split, next(model.parameters()).device
    weights_H1 = row_weights(split.shape[-2], split.geometry).to(device)
    climate_1CHW = torch.from_numpy((split.time_means_1CHW - split.means_1C11) / split.stds_1C11).to(device)
    was_training = model.training
    model.eval()
    rows_5NC = torch.zeros(5, len(pairs), split.shape[0], device=device)
    mine = torch.arange(len(pairs)).split(batch_size)[team.rank :: team.world_size]
    loader = torch.utils.data.DataLoader(pairs, batch_sampler=[indices.tolist() for indices in mine])
    for indices, (x_BCHW, y_BCHW) in zip(mine, loader, strict=True):
        x_BCHW, y_BCHW = x_BCHW.to(device), y_BCHW.to(device)
        forecast_BCHW = model(x_BCHW)
        rows_5NC[:, indices.to(device)] = torch.stack(
            [
                rmse(forecast_BCHW, y_BCHW, weights_H1),
                rmse(x_BCHW, y_BCHW, weights_H1),
                rmse(climate_1CHW, y_BCHW, weights_H1),
                anomaly_correlation(forecast_BCHW, y_BCHW, climate_1CHW, weights_H1),
                anomaly_correlation(x_BCHW, y_BCHW, climate_1CHW, weights_H1),
            ]
        )
    model.train(was_training)
    return Scores(*team.sum(rows_5NC).mean(1).cpu(), channels=split.channel_names)
