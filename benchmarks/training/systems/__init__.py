"""The systems that are compared, each as a process that takes a step on request (train_step.serve)."""
