"""Encode and decode the NATS protocol: header blocks, frames and ack subjects. No network I/O."""
