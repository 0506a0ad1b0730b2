"""Scores and pictures of attention."""
