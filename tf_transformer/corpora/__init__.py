"""What a run learns from."""
