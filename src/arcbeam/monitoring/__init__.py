"""A job's figures for programs that scrape them."""
