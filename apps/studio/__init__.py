"""The studio: images from prompts, paid with credits. An application of Interlock."""
