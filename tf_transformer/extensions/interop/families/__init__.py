"""Pretrained checkpoints, and the families of models that they belong to."""
