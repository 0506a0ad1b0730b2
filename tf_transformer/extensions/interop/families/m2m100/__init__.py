"""M2M100 and NLLB-200: multilingual models for a hundred languages and more."""
