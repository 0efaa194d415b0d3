"""Long runs with commands of their own: `make soak`, `make fuzz`, `make mutants`, `make matrix`."""
