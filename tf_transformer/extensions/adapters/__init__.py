"""LoRA adapters of any Keras model: enabled, stored in a file of their own, and merged."""
