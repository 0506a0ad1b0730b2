"""LoRA adapters for any Keras model: enable, save, load and merge."""
