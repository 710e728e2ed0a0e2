"""Losses per sample for tasks whose criterion returns something else."""

from .contrastive import contrastive_loss
from .detection import per_image, set_prediction_loss
from .diffusion import TimestepNormalizer, diffusion_loss, min_snr_weight
from .language import chunked_language_loss, language_loss
from .masked_images import masked_image_loss
from .mixing import mix_targets, mixed_loss
from .per_sample import PerSample, per_sample
from .segmentation import segmentation_loss

__all__ = [
    "PerSample",
    "TimestepNormalizer",
    "chunked_language_loss",
    "contrastive_loss",
    "diffusion_loss",
    "language_loss",
    "masked_image_loss",
    "min_snr_weight",
    "mix_targets",
    "mixed_loss",
    "per_image",
    "per_sample",
    "segmentation_loss",
    "set_prediction_loss",
]
