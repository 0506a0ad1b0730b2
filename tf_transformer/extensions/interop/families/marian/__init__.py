"""MarianMT models, such as OPUS-MT's."""
