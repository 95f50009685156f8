"""Rows → batches: which rows each rank sees at each step, and how they get there."""
