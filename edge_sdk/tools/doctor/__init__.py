"""`edge-sdk doctor`: what this machine and a broker are fit for, and what to do about each fault."""
