"""What is recorded about a failure, and how its sample is found and named."""
