"""The server side of the federation; Flower starts it once per run."""

from pathlib import Path

from caveat.federation import server_app

app = server_app(Path(__file__).parents[1] / "config.toml")
