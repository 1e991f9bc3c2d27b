"""Framed RPC between instances, clients and tools: one protocol, one port, TLS when configured.

`frames` is the wire format, `hello` who speaks and which protocol they share, `connection` what both ends of a
connection have in common, `server` and `client` the two ends, `tls` the certificates. Everything runs on the event loop
it is called from and takes time, sockets and randomness only from that loop and from what it is given, so the
simulator runs this very code.
"""
