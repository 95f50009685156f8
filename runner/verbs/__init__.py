"""One file a verb of the command line; `train` is the verb when none is typed."""
