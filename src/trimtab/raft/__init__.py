"""Consensus as a library: input in, `Ready` out; no sockets, no clock, no threads, no randomness of its own.

The message semantics are those of etcd's raft, so that its public traces are an independent oracle. One noun per
module: `quorum` counts, `progress` and `tracker` remember what peers have, `confchange` computes memberships, `log`
joins the stable and the unstable part, `raft` is the state machine, `node` is the door the host uses.
"""
