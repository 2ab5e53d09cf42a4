"""Whether the files of a run hold together."""
