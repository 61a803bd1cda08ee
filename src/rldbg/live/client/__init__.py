"""Clients of a broker: the connection, the broker's process, and the port for editors."""
