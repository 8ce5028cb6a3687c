"""The demo: a year of departures from New York's three airports, joined with the weather they left in.

`archive` fetches the data, `records` reads lines, `summaries` adds up, `pipeline` puts them together, `report` and
`picture` show what the pipeline wrote, `main` is the program.
"""
