"""Many processes: one exchange per epoch, and scores in shards for data sets too large for one table."""
