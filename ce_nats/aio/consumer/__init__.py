"""Consume events from JetStream: fetch, hand to a handler, acknowledge, redeliver or dead-letter."""
