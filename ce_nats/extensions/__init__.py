"""CloudEvents extensions that senders or receivers process: tracing and correlation."""
