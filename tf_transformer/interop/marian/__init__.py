"""MarianMT: models, tokenizers and files."""
