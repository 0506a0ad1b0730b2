"""Programs: `tf-transformer translation` and so on; in a clone also `python -m trainers.translation`. Each has --help.

The installed package has this folder as tf_transformer.trainers, so its files import each other by relative names.
"""
