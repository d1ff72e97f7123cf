"""What a stack says about processes."""

import subprocess
import sys
from pathlib import Path

from local.stack import alive


def test_a_process_is_found_however_long_its_command_is(tmp_path: Path) -> None:
    """`ps` cuts lines at 80 columns where it may, and a checkout may lie deep."""
    script = tmp_path / ("d" * 120) / "local/emulator.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys\nprint(flush=True)\nsys.stdin.read()\n")
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert alive(process.pid)
        process.communicate()
    assert not alive(process.pid)
