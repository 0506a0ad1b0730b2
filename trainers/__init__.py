"""Programs: python -m trainers.translation, .evaluate, .translate, .export, .attention. Each has --help."""
