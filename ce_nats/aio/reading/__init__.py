"""Read stored messages of streams, without acknowledgements."""
