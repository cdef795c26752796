"""HTTP: authentication, request bodies, responses, event streams and the server."""
