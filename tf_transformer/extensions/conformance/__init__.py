"""Checks of any SavedModel, as TensorFlow Serving would load it; also of a LiteRT or an ONNX export."""
