"""Files in and out of an instance, beside its node: a process of its own, with threads and blocking sockets."""
