"""Training in a run's directory: `Trainer` and its callbacks."""
