"""Training runs: the recipe, the run's folder, callbacks, and the trainer."""
