"""The tablet replicas of one instance: directories that take writes, answer reads, catch up and are rebuilt."""
