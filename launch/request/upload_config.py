"""Typed settings of `make upload`."""

from dataclasses import dataclass


@dataclass
class UploadConfig:
    """Copying a dataset to S3."""

    source: str
    """Folder to upload. Hidden files are left out."""
    s3: str
    """S3 prefix that the files go below."""
    overwrite: bool = False
    """Replace objects with different content. Otherwise such an object stops the upload."""
