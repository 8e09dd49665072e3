"""The packed dataset: its index, and its shards as maps or streams."""
