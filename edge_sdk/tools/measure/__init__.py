"""Measures the profile of this machine, and of its link to a broker: `edge-sdk boards --measure`."""
