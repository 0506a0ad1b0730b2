"""Text in, text out: tokenizer, search, sampling, and the translator that holds them."""
