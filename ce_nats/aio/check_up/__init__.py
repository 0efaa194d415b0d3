"""Check the configuration of streams and consumers against what a program needs."""
