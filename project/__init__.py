"""Your own code: models, tasks, augmentations, sources, loggers. Settings name it by dotted path."""
