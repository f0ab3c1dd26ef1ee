"""Trials of the negotiated kernels on this rank's device, against the reference kernels in float64."""
