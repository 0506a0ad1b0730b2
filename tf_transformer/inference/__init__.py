"""Engines that map strings to strings: translators, SavedModels, LiteRT and ONNX exports."""
