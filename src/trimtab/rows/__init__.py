"""Rows as bytes: keys in CQL's order, values as columns, versions that merge in any order."""
