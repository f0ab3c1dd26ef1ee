"""What a run tells about itself: metrics, console, TensorBoard, timers, environment, report."""
