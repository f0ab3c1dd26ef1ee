"""A simulated Ascend NPU under the real torch_npu: tests of the ascend backend on a machine without one.

docs/ascend-simulator.md says what is simulated, how it is run, and what it cannot show.
"""
