"""The version of the three packages, in a module that everybody may import."""

__version__ = "0.1.0"
