"""Clients of the external systems that the librarian uses."""
