"""When a device trains, and what training may cost: conditions, sensors, energy, and the priority of its thread.

It may import boards and protocol.  Nothing here knows of exchanges or messages: the agent asks between two batches.
"""
