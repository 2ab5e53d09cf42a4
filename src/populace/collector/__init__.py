"""A collection service for one answer per person: a study's folder, an HTTP server, its rounds, and the fit at the end.

study       what is asked: the agreed facts, in a folder
questions   what one device needs to randomise a record, as plain data
store       invitations, places, answers and rounds, in SQLite or PostgreSQL
app         the HTTP interface
rounds      the coordinator: rounds open, close and are absorbed, in a process of its own
progress    what the organiser sees while answers come in
fit         from the store to a run folder
device      the client that randomises, keeps its ledger and sends
"""
