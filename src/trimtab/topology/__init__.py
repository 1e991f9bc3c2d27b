"""The cluster as data: instances with their grades and states, requests, versions, leases. Pure: no I/O, no clock."""
