"""Storage engines behind one port: RocksDB for real disks, a deterministic model for simulation, and the node log."""
