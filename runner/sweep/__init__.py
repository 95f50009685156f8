"""Several jobs of one command."""
