"""Checks of any SavedModel, as TensorFlow Serving would load it, and of LiteRT and ONNX exports."""
