"""How good a model is, what it costs, what it looks at."""
