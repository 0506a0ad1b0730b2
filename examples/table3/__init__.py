"""Table 3 again, under one budget; docs/results.md has what came of it."""
