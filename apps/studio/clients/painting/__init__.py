"""Drawing code of the local provider: palettes, canvas operations, skies and landscapes."""
