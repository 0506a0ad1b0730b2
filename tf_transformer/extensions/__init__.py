"""Parts that plug into the core from outside. The core imports none of them."""
