"""Programs: `tf-transformer translation` and so on, or `python -m trainers.translation` in a clone. Each has --help.

The installed package has this directory as tf_transformer.trainers, so its files import each other by relative names.
"""
