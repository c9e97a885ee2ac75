"""The server's side of the federation; Flower starts it once for a run."""

from pathlib import Path

from caveat.federation import server_app

app = server_app(Path(__file__).parents[1] / "config.toml")
