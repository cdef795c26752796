"""The rules of lifecycles, transitions and payloads, as pure code without I/O."""
