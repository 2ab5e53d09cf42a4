"""The ledger of runs that lies beside the data: what each run cost, and what all cost together."""
