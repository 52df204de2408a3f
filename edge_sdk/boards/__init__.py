"""Boards and links: the profiles of firmware_profiles as dataclasses, and as a table for people.

May import `errors`; models, devices, tools and simulations read profiles from here.
"""
