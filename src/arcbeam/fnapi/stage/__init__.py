"""Stages whose transforms run in an SDK worker."""
