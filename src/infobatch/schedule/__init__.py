"""Schedulers that follow the data."""
