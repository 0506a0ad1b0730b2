"""Strings in, answers out: a translator, a SavedModel, a LiteRT or an ONNX export."""
