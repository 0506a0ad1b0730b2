"""Values, files, messages and types, for all subpackages."""
