"""`edge-sdk doctor`: checks whether this machine and a broker are fit for use, and says what to do about each fault."""
