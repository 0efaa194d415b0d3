"""Long runs with commands of their own: `make fuzz`, `make mutants`."""
