"""Consume events from JetStream: fetch, handle, acknowledge, redeliver or dead-letter."""
