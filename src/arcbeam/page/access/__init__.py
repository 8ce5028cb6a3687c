"""Who may open the page: its token, logins, and how often a wrong token may be tried."""
