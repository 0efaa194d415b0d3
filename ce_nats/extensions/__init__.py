"""CloudEvents extensions that a sender or receiver acts on."""
