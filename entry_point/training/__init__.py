"""Training: the loop in trainer.py, and its parts."""
