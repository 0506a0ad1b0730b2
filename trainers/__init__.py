"""Programs: python -m trainers.translation, .evaluate, .translate, .export. Each has --help."""
