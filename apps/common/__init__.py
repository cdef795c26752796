"""Code that the applications share: database, settings, command line, HTTP server, shutdown and formatting."""
