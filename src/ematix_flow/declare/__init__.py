"""What the user writes: frozen specs. Nothing here reads a file, an environment variable or a server."""
