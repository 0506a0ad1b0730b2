"""The Transformer of Figure 1, and ensembles of it."""
