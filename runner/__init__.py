"""runner: declarative, config-driven experiments for Horovod on Ray, tracked in MLflow."""

__version__ = "0.1.0"
