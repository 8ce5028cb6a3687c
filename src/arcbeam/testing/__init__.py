"""What tests use, ours and others': stores that fail by the book, state in memory.

Nothing in arcbeam imports it.
"""
