"""English constituency parsing (section 6.3)."""
