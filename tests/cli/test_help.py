"""The help of each command, as a file that a reviewer reads as a user would."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from arcbeam.cli.main import main
from tests.golden.texts import _HELP, check_help

pytestmark = pytest.mark.contract("OPS-02")


@pytest.mark.parametrize("command", ["arcbeam", *main.commands])
def test_help_of_command_is_golden(command: str) -> None:
    arguments = [] if command == "arcbeam" else [command]
    result = CliRunner().invoke(main, [*arguments, "--help"], prog_name="arcbeam", terminal_width=100)
    assert result.exit_code == 0
    check_help(command, result.stdout)


def test_every_golden_help_is_of_a_command() -> None:
    assert {path.stem for path in _HELP.iterdir()} == {"arcbeam", *main.commands}
