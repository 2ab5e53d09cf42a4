"""What is guaranteed: events, accounting, ledgers, and the randomisers that make the noise."""
