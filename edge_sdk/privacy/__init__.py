"""Sums by class that are released with noise, and what they promise about one record.

Pure; imports arrays.  Nothing here knows a model or a federation.
"""
