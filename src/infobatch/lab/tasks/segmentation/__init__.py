"""Semantic segmentation: readers of images and masks, nets that label pixels, crops, and the tasks made of them."""
