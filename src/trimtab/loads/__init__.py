"""Loads: whole files of rows that appear in a table at once, the sessions they are staged under, and their epochs."""
