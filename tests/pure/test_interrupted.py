"""An end that comes while an object is torn down, where Python drops every exception: it comes once more."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from wmmagen import cli

#: An object that is torn down raises what a signal's handler raised there.
TORN = """
import signal, sys, time
from wmmagen import cli
sys.unraisablehook = cli._lost
signal.signal(signal.SIGTERM, cli._terminated)
class Torn:
    def __del__(self):
        raise {error}
torn = Torn()
try:
    del torn
    for _ in range(1000):
        time.sleep(0.001)
except KeyboardInterrupt:
    sys.exit(7)
print("it went on")
"""


@pytest.mark.parametrize(("error", "status"), [("KeyboardInterrupt", 7), ("SystemExit(143)", 143)])
def test_what_was_dropped_comes_again(error: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TORN.format(error=error)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_other_errors_are_told_as_ever() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TORN.format(error="ValueError('once')")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "it went on\n")
    assert "ValueError: once" in done.stderr


def test_the_console_script_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli, "run", lambda _: 0)
    with pytest.raises(SystemExit):
        cli.main()
    assert sys.unraisablehook is cli._lost
