"""Serving: the contract of a SavedModel (`export`), its folder (`publish`), a loader like TensorFlow Serving's
(`loader`), and the checks before publication (`check`, `probe`)."""
