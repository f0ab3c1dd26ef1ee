"""Time of a step, from its traced operations and messages and the figures of a device."""
