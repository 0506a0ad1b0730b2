"""Models of other projects, read and written."""
