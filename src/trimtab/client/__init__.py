"""Clients of a cluster: they know addresses, retry only where it is safe, and explain what went wrong."""
