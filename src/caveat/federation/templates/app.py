"""The two sides of the federation; Flower starts them."""

from pathlib import Path

from caveat.federation import server_app, silo_app

server = server_app(Path(__file__).parents[1] / "config.toml")
silo = silo_app()
