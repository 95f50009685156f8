"""Faults that are injected for real, a figure for each that must hold, and the table of them (`make faults`)."""
