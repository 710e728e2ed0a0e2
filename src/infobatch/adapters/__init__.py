"""Losses per sample for tasks whose criterion returns something else."""

from .detection import per_image, set_prediction_loss
from .diffusion import TimestepNormalizer, diffusion_loss, min_snr_weight
from .per_sample import PerSample, per_sample
from .segmentation import segmentation

__all__ = [
    "PerSample",
    "TimestepNormalizer",
    "diffusion_loss",
    "min_snr_weight",
    "per_image",
    "per_sample",
    "segmentation",
    "set_prediction_loss",
]
