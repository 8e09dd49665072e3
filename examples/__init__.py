"""The operator and the loader in other training code; see README.md."""
