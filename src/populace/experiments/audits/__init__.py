"""What clients send, audited: lower bounds on epsilon from samples of their messages."""
