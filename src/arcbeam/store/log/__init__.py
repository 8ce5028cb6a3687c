"""The sequence of manifests: opening, commits, savepoints, sweeps, inspection."""
