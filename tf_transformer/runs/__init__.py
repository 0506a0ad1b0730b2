"""A training as a folder: the recipe, what it learns from, its checkpoints, and the trainer that fills it."""
