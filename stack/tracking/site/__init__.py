"""The tracking server of a site, and the care of any tracking store: backup, restore, upgrade, retention.

A place is a database and a folder of artifacts: SQLite for one host, PostgreSQL for a site. Passwords are
read from files that only their owner can read, and stand in no address, argument or log.
"""
