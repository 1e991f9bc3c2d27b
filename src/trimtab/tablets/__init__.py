"""Tablets: the token ring, where replicas lie, and which of them a request needs."""
