"""The queue of bulk work: commands that wait for others, are run by one driver at a time, and can be undone."""
