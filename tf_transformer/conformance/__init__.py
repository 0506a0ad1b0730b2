"""Checks of any SavedModel, as TensorFlow Serving would load it; also of a LiteRT export."""
