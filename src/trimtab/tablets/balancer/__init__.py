"""The balancer: where replicas should be, and the fewest moves that get there. Pure: arrays in, moves out.

`model` is what it looks at, `planning` decides, `live` translates from and to the running cluster, `files` from and to
topology files. All but `live` need numpy when they are imported, so that a node imports them where it plans.
"""
