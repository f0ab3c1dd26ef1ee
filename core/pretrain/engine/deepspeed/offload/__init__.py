"""Files in which ZeRO-3 keeps weights and optimizer state: `device: nvme`."""
