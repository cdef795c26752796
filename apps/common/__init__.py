"""What every application here needs: its own tables beside the engine's, settings, a terminal, and a process that ends in good order."""
