"""CaptureResult messages as columns of Spark, and columns as messages."""
