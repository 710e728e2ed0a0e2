"""Whose loss is it: batches that carry their indices, and stock loaders whose batches are counted. See README.md."""
