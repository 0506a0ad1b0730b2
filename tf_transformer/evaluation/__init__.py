"""Scores, training costs and pictures of attention."""
