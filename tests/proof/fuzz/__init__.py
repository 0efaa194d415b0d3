"""`make fuzz`: every decoder against arbitrary bytes, and implementations of the same rules against each other."""
