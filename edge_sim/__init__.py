"""The fleet simulator: N agents and one coordinator, the very code of a deployment, on one machine."""
