"""The studio: creates images from prompts and charges credits for them. An Interlock application."""
