"""Table 3 again, with one budget for all rows (see docs/results.md)."""
