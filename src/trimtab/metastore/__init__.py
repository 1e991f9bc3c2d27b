"""The replicated state machine that holds all cluster state: revisions, conditional commands, watches, snapshots.

Pure: no I/O, clock, threads or randomness of its own. It works on any ordered store that writes batches atomically.
"""
