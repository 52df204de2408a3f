"""The coordinator: joins devices, aggregates their knowledge, and never sees their data."""
