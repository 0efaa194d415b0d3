"""Publish, subscribe, request and respond on core NATS."""
