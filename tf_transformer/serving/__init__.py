"""Exports: the serving contract and the formats of saved models."""
