"""CloudEvents as NATS messages and back: the NATS protocol binding, without a network."""
