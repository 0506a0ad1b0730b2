"""Engines for LiteRT and ONNX, and a client that needs neither TensorFlow nor this package."""
