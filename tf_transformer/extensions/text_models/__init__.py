"""Keras models that take texts: called with strings, and exported as SavedModels that include the tokenizer."""
