"""All parts of ce_nats on a cluster whose servers and clients are killed: ``python -m tests.proof.soak``."""
