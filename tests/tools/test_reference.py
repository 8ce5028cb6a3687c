"""The generated pages have every option and every command."""

from __future__ import annotations

from tools import reference


def test_pages_have_every_option_and_command() -> None:
    options, commands = reference.options_page(), reference.commands_page()
    for _, _, actions in reference.groups():
        for action in actions:
            assert all(f"`{name}" in options for name in action.option_strings if "-" not in name[2:])
            assert action.help
    for name, command in reference.commands():
        assert f"\n## {name}\n" in commands
        assert command.help


def test_shared_options_are_described_once() -> None:
    page = reference.commands_page()
    assert page.count("| `--wait SECONDS` | Seconds to wait for the result.") == 1
    drain = page.partition("\n## drain\n")[2].partition("\n## ")[0]
    assert "[Common options](#common-options): `--endpoint`, `--tls-ca`, `--token-file`, `--wait`." in drain
    own = page.partition("\n## sample\n")[2].partition("\n## ")[0]
    assert "| `--wait SECONDS` | Seconds to wait for elements. Default: 30. |" in own
