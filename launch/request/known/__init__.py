"""Facts about the job's machine and image, for hosts that can ask neither."""
