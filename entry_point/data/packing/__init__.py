"""Packing a folder of images into the format that trains fastest."""
