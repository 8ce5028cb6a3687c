"""The commands of `arcbeam`: one module a command, and modules that they share."""
