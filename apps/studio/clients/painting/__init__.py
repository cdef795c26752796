"""What the local provider paints with: colours, a canvas, skies, and what lies under them."""
