"""Programs: python -m trainers.translation, .evaluate, .translate. Each has --help."""
