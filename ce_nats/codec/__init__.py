"""The NATS protocol binding for CloudEvents: encodes events as NATS messages and decodes them. No network I/O."""
