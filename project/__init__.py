"""Your own code, named by dotted path: models, tasks, augmentations, sources, loggers."""
