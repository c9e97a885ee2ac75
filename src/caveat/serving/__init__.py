"""Serving a silo's model: answers, a service over HTTP, and a watch of its inputs and outcomes."""
