"""Child processes, which run the handlers of kinds with `process=True` and of suspects."""
