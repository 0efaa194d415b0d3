"""Publish events, rows of Spark and captured messages to streams, and wait for acknowledgements."""
