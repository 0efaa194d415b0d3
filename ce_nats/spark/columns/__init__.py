"""Conversion of captured messages to Spark columns, and of columns to messages."""
