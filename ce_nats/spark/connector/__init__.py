"""JetStream as a data source and sink of Spark."""
