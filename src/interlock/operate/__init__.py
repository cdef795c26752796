"""Operator commands and inspection: cancel, release, redrive, explain, status, verify."""
