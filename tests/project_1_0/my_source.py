# project/my_source.py
from entry_point.data.sources.source import FileSource


def by_folder(root, split, suffix=".jpg"):
    files = sorted((root / split).rglob(f"*{suffix}"))
    classes = sorted({file.parent.name for file in files})
    labels = [classes.index(file.parent.name) for file in files]
    return FileSource(files, labels, classes)
