"""Places of the ranks in a training: kept while it runs, put together when one hangs or on SIGUSR1."""
