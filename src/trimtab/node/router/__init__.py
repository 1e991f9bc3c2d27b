"""The way of a request: from any door, through one executor, to the replicas it needs, and back."""
