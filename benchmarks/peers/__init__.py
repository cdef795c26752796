"""Compares Interlock with other job systems on the same machine, in one run: `make bench-peers`."""
