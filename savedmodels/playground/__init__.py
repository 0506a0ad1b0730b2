"""A web page and TensorFlow Serving's APIs around one SavedModel: for trying, not for production."""
