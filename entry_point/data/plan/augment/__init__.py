"""Policies: which operations each sample gets, drawn as `custom_op.augment_ops` writes them."""
