"""Clients of external systems: image providers, provider links and the storage of originals."""
