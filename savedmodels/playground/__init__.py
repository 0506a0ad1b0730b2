"""A web page and TensorFlow Serving's APIs for one model: for trials, not for production."""
