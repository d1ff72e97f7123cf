from threadkeep_client.cli import run

run()
