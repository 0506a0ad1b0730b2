"""MarianMT models, such as those of OPUS-MT."""
