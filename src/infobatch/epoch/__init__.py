"""One epoch: from a plan to new scores. README.md has the picture."""
