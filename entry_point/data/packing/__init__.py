"""Packing a folder of images into the form that trains fastest."""
