"""The driver of jobs: it takes them from the cluster's queue, under a lease, and runs them on one session of Spark."""
