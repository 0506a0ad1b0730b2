"""Methods for small corpora beyond the paper, built on the package's public interface; README.md describes them."""
