"""What a run shows: metrics, console, TensorBoard, timers, environment, hang report, pages."""
