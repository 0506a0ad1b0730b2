"""M2M100 and NLLB-200: one model for a hundred languages and more."""
