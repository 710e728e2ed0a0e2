"""Per-sample losses of tasks beyond image labels. Empty for now."""
