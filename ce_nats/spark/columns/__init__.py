"""Captured messages to Spark columns, and columns to messages."""
