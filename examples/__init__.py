"""Beam pipelines to run and to read. They are ordinary pipelines: only the command line names a runner."""
