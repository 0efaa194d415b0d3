"""Mutation testing: change one operator, constant or statement at a time, and check that a test fails."""
