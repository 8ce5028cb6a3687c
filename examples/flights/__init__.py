"""The demo: a year of departures from New York's three airports, joined with the weather at departure.

`archive` fetches the data, `records` reads lines, `summaries` adds up, `pipeline` connects them, `report` and `picture`
show the results, and `main` is the program.
"""
