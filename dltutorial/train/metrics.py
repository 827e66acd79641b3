"""How good is a forecast? Root-mean-square error and anomaly correlation, per channel, weighted by area.

Legend: B samples, C channels, H rows (latitude), W columns (longitude).
"""

import torch
from torch import Tensor


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
