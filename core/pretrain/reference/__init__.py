"""Reference kernels in plain torch, correct on any device.

They are the fallback of every run and the oracle of the conformance kit: in float64 nothing is rounded to less.
"""
