"""The bytes of the brokers, one module each: ``nats``, ``stan``, ``iggy``. Bytes and values, no sockets."""
