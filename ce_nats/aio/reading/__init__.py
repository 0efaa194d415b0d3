"""Read messages that a stream has, without acknowledgements."""
