"""Losses per sample for tasks whose criterion returns something else."""

from .detection import per_image, set_prediction_loss
from .diffusion import TimestepNormalizer, diffusion_loss, min_snr_weight

__all__ = ["TimestepNormalizer", "diffusion_loss", "min_snr_weight", "per_image", "set_prediction_loss"]
