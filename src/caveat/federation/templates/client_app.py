"""The silo side of the federation; Flower starts it for every message."""

from caveat.federation import silo_app

app = silo_app()
