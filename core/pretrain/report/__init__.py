"""What a run shows: metrics, console, loggers, timers, environment, hang report, pages."""
