"""Losses per sample for tasks whose criterion returns something else."""
