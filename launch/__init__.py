"""What runs on the desk: set-up, and starting the job here, in a container, on SageMaker."""
