"""Documents: texts of any length, with markup, around an engine that translates sentences."""
