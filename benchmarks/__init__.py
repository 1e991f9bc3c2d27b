"""Benchmarks: what Trimtab does beside a system that people already use, on the same machine, under the same load.

A benchmark is a module named in BENCHMARKS with `run(options) -> Report`. It says what it could not measure and why; a
figure without its peer, or without the sync latency of the disk it ran on, means little.
"""

BENCHMARKS = ("metastore", "groups", "idle", "storage", "serve", "spark", "plan", "rebalance")
