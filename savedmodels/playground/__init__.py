"""A web page and TensorFlow Serving's APIs for one SavedModel: for trials, not for production."""
