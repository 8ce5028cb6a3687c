"""The commands of `arcbeam`: one module a command, beside what they share."""
