"""The sequence of manifests: opening, committing, savepoints, sweeping, inspecting."""
