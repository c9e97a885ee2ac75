"""Parts of architectures, independent of federations."""
