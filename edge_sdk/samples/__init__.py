"""A device's own data as it comes: the store that an app puts samples into, and the readers of folders and files.

May import public_set and the single files data, arrays, durable and errors; the device, the agent and the sources of
the simulator use it.
"""
