"""Whole nodes on virtual time, network and disk: every run is a function of its seed.

Only the ports of a node differ from production (the loop, the disk, the random source, the wall clock); the code of
Raft, the log, the RPC and the state machine is the same.
"""
