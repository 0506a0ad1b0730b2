"""What every room needs: values, files, messages, types."""
