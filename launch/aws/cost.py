"""What a job costs at most, and an endpoint per hour, from AWS's public price list."""

import json
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from launch.sagemaker.aws import aws_client
from launch.sagemaker.config import Target

# Few regions serve the price list; each has the prices of all regions.
_PRICES_REGION = "us-east-1"


class PriceUnknownError(Exception):
    """One line: why the price is unknown."""


def estimate_cost(target: Target, session: Any, component: str = "Training") -> str:
    """One line: the on-demand cost of target.max_runtime_s, or why it is unknown.

    `component` is Training or Processing, as in the price list.
    """
    hours = target.max_runtime_s / 3600
    try:
        hourly = max(hourly_cost(each, session, component) for each in target.alternatives)
    except PriceUnknownError as error:
        return f"cost: {error}"
    line = f"cost: at most ${hourly * hours:,.2f} on demand, {hours:g} h at ${hourly:,.2f} per hour"
    if component != "Training":
        return line
    if target.spot:
        return f"{line}; spot costs up to 90 % less (AWS); the job's summary shows the savings"
    return f"{line}; target.spot=true costs up to 90 % less (AWS)"


def hourly_cost(machines: Sequence[tuple[str, int]], session: Any, component: str) -> float:
    """On-demand US dollars per hour of so many instances of each type.

    `component` is Training, Processing, Hosting or Batch Transform, as in the price list. Raises
    PriceUnknownError.
    """
    try:
        return sum(_hourly_price(kind, session, component) * count for kind, count in machines)
    except LookupError as error:
        raise PriceUnknownError(
            f"the price list has no entry for {error.args[0]} in {session.region_name}"
        ) from error
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else str(error)
        raise PriceUnknownError(
            f"unknown, no access to the price list ({code}); needs pricing:GetProducts"
        ) from error


def _hourly_price(instance_type: str, session: Any, component: str) -> float:
    """On-demand US dollars per hour; raises LookupError with the type if it is not listed."""
    filters = {
        "regionCode": session.region_name,
        "instanceName": instance_type,
        "component": component,
    }
    answer = aws_client(session, "pricing", region_name=_PRICES_REGION).get_products(
        ServiceCode="AmazonSageMaker",
        Filters=[{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in filters.items()],
    )
    for product in answer["PriceList"]:
        for term in json.loads(product)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if price:
                    return price
    raise LookupError(instance_type)
