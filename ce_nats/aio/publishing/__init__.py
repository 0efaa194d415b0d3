"""Publish to streams: events of a program, rows of Spark, captured messages; and wait for acknowledgements."""
