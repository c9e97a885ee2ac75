"""Parts of architectures; nothing here knows of federation."""
