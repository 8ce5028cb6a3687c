"""Pipelines whose transforms run in SDK workers, on two job servers: arcbeam's and Prism's."""
