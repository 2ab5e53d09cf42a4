"""The methods, one folder per family: open it and you have all of it."""
