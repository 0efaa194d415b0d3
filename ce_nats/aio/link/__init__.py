"""Connections of nats-py, and what they lack. No other part of the package uses private names of nats-py."""
