"""Claims of the paper, tested by small experiments (see docs/explanation/claims.md)."""
