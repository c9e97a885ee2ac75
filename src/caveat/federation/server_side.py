"""The app of the server: what Flower starts on the server's machine."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from .. import config as configuration
from ..engines.allocator import use_huge_pages
from .delivery import deliver
from .log import check_free, logged
from .server import StartCommand, serve

PROJECT = "FEDERATION"
"""The environment variable with the project's folder, as its scripts set it."""


def server_app(config_file: Path) -> ServerApp:
    """The app of the server: carries out, or continues, the run in the folder that the run's configuration names.

    `run` is that folder, `set` are overrides of the configuration's keys, separated by ";". With `deliver`, names of
    silos separated by ",", the run is finished, and these get its model; those that never took part join in `rounds`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        use_huge_pages()
        given = context.run_config
        sets = [item.strip() for item in str(given.get("set", "")).split(";") if item.strip()]
        folder = Path(str(given.get("run") or "runs/federation")).expanduser().absolute()
        check_free(folder)  # before the log of the process that has it says anything of this one
        with logged(folder) as progress:
            progress.note(f"run: {folder}")
            config = configuration.load(str(config_file), sets)
            start = StartCommand(os.environ.get(PROJECT, ""), tuple(sets))
            if late := [name.strip() for name in str(given.get("deliver", "")).split(",") if name.strip()]:
                rounds = str(given.get("rounds", ""))
                deliver(config, grid, folder, late, progress, int(rounds) if rounds else None, start)
            else:
                serve(config, grid, folder, progress, start)

    return app
