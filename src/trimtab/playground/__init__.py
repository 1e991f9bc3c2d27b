"""Clusters on one machine, to try things out: real processes, real disks, loopback only."""
