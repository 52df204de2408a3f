"""edge-sdk: devices with different models trade knowledge, not data and not weights."""

__version__ = "0.1.0"
