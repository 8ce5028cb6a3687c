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
