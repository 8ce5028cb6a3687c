"""Beam pipelines to run and to read. They are ordinary ones: a runner is named on the command line only."""
