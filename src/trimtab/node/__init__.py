"""One running instance: Raft groups on a node log, their state machines, and the doors to them."""
