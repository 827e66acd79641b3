"""How good is a weather forecast? Error and anomaly correlation, per channel, weighted by area.

A forecast is judged against the two simplest ones: nothing changes (persistence), and the average state (climatology).

Legend: N samples in the split, B in a batch, C channels, H rows (latitude) × W columns (longitude).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dltutorial.data.loaders import Pairs
from dltutorial.train.distributed import rank, sum_over_ranks, world_size


def row_weights(n_lat: int, geometry: str) -> Tensor:
    """The share of the area that each row stands for: shape (H, 1), mean 1.

    On a ``sphere`` rows shrink towards the poles with the cosine of latitude, which runs from 90° to −90° with both
    poles on the grid (ERA5). On the flat ``beta-plane`` all rows count the same.

    Raises:
        ValueError: another geometry.
    """
    if geometry == "beta-plane":
        return torch.ones(n_lat, 1)
    if geometry != "sphere":
        raise ValueError(f"geometry {geometry!r} is neither sphere nor beta-plane")
    weights_H1 = torch.cos(torch.deg2rad(torch.linspace(90, -90, n_lat))).clamp_min(0)[:, None]
    return weights_H1 / weights_H1.mean()


def rmse(forecast_BCHW: Tensor, truth_BCHW: Tensor, weights_H1: Tensor) -> Tensor:
    """Area-weighted root-mean-square error of each sample and channel, shape (B, C).

    Rasp et al. 2020 (WeatherBench, arXiv:2002.00469), equation 1: the root is taken before averaging over samples.
    """
    return (weights_H1 * (forecast_BCHW - truth_BCHW) ** 2).mean((-2, -1)).sqrt()


def anomaly_correlation(forecast_BCHW: Tensor, truth_BCHW: Tensor, climate_1CHW: Tensor, weights_H1: Tensor) -> Tensor:
    """Area-weighted correlation of the departures from climatology, shape (B, C), between −1 and 1.

    Rasp et al. 2020, equation 2, without removing the mean of the anomalies. A forecast that never departs from
    climatology has no defined correlation; it scores 0.
    """
    f, t = forecast_BCHW - climate_1CHW, truth_BCHW - climate_1CHW
    product = (weights_H1 * f * t).mean((-2, -1))
    spread = ((weights_H1 * f**2).mean((-2, -1)) * (weights_H1 * t**2).mean((-2, -1))).sqrt()
    return torch.where(spread > 0, product / spread.clamp_min(torch.finfo(spread.dtype).tiny), 0.0)


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
def evaluate(model: nn.Module, pairs: Pairs, batch_size: int = 16) -> Scores:
    """Forecast every pair of a split once and score it. The model is left in the mode it was found in.

    Several ranks share the batches; each gets the scores of all, the very ones that one rank alone would find.
    """
    split, device = pairs.split, next(model.parameters()).device
    weights_H1 = row_weights(split.shape[-2], split.geometry).to(device)
    climate_1CHW = torch.from_numpy((split.time_means_1CHW - split.means_1C11) / split.stds_1C11).to(device)
    was_training = model.training
    model.eval()
    rows_5NC = torch.zeros(5, len(pairs), split.shape[0], device=device)
    mine = torch.arange(len(pairs)).split(batch_size)[rank() :: world_size()]
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
    model_C, now_C, mean_C, model_r_C, now_r_C = sum_over_ranks(rows_5NC).mean(1).cpu()
    return Scores(model_C, now_C, mean_C, model_r_C, now_r_C, split.channel_names)
