"""Commands for the host: set up, then start the job locally, in a container or on SageMaker."""
