"""Exports to LiteRT, ONNX, CTranslate2 and transformers."""
