"""Interlock on PostgreSQL."""
