"""Training in a run's folder: `Trainer` and its callbacks."""
