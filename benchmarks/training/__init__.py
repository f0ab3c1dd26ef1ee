"""The time of a training step on a CPU, and what adds to it: kernels, bridge, start-up, checkpoints."""
