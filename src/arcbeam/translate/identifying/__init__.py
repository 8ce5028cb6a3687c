"""What identifies transforms across submissions of one script, by their protos and pickles."""
