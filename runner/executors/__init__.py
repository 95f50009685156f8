"""How workers are started. Each executor is one file; all run the same worker.train_loop_per_worker."""
