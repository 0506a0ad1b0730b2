"""One HTTP server: TensorFlow Serving's REST API, LibreTranslate's API and a page for one model."""
