"""`threadkeep` on the command line."""

from threadkeep_client.cli.main import main, run

__all__ = ["main", "run"]
