"""A board's profile, measured on the machine itself: `edge-sdk boards --measure`."""
