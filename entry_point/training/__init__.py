"""The parts that `entry_point.train` is put together from, one idea each."""
