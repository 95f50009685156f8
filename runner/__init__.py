"""runner: declarative, config-driven experiments for Horovod on Ray, tracked in MLflow."""

__version__ = "0.1.0"

import gc

# By default Python looks for garbage hundreds of times while torch is imported: 0.3 s of each process.
gc.set_threshold(10_000)
