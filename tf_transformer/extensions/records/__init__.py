"""Prepared records: a tokenized corpus on disk, for corpora larger than memory, and filters of pairs."""
