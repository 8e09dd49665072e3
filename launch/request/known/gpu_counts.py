"""How many GPUs an instance of a SageMaker type has, from AWS's pages on EC2 instance types."""

# Family -> GPUs of its sizes; "" is every size that is not listed.
_GPUS: dict[str, dict[str, int]] = {
    "g4dn": {"12xlarge": 4, "": 1},
    "g5": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "": 1},
    "g6": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "": 1},
    "g6e": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "": 1},
    "g7e": {"12xlarge": 2, "24xlarge": 4, "48xlarge": 8, "": 1},
    "p2": {"8xlarge": 8, "16xlarge": 16, "": 1},
    "p3": {"8xlarge": 4, "16xlarge": 8, "": 1},
    "p3dn": {"": 8},
    "p4d": {"": 8},
    "p4de": {"": 8},
    "p5": {"4xlarge": 1, "": 8},
    "p5e": {"": 8},
    "p5en": {"": 8},
    "p6-b200": {"": 8},
    "p6-b300": {"": 8},
    "p6e-gb200": {"": 4},
}


def gpu_count(instance_type: str) -> int | None:
    """The GPUs of a GPU type; None for a type that is not known here."""
    _, _, name = instance_type.partition(".")
    family, _, size = name.partition(".")
    sizes = _GPUS.get(family)
    return sizes.get(size, sizes[""]) if sizes and size else None
