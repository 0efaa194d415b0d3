"""Encode CloudEvents as NATS messages and decode them, by the NATS protocol binding. No network I/O."""
