"""Coordinator halves of the methods, under the same names; registered in the group `coordinator.methods`."""
