"""The systems that are compared, each as a process that takes a step when it is told: see train_step.serve."""
