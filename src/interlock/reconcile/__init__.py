"""Follows work in external systems: the reconciler and the completion callback."""
