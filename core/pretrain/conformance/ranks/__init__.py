"""Conformance of what needs two ranks: collectives, tensor-parallel linear and cross entropy."""
