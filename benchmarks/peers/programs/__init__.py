"""One program per system. Each runs as `install`, `client` or `worker`, in the environment of its own system."""
