"""CloudEvents extensions that are processed: tracing, correlation, expiry, partitioning and data references."""
