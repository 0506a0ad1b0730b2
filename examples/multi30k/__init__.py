"""Methods for small corpora that are not the paper's, on the package's public interface. README.md says which."""
