"""What travels, as pure values: no I/O, no clock, no randomness."""
