"""Interlock on SQLite."""
