"""What is written: the serving contract, and the formats of a saved model."""
