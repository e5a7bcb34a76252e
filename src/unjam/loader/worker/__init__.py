"""The worker process: start, input, fetching batches, failure recovery, exit."""
