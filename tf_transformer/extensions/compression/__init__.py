"""Smaller models for serving: weights of 8 bits, and graphs of SavedModels with half as many nodes."""
