"""Your own code: models, tasks, sources, loggers. Settings name it by dotted path."""
