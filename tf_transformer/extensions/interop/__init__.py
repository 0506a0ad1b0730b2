"""Other families of models, other engines and formats."""
