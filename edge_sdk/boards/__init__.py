"""Boards and links: the profiles in firmware_profiles as dataclasses, and as tables for people.

May import `errors`; models, devices, tools and simulations read profiles from here.
"""
