"""Keras models of your own with text in: called with strings, and exported as SavedModels with the tokenizer inside."""
