"""A run's outcome: as values, as files, as pictures and as a table."""
