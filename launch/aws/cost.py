"""What a job may cost, by AWS's public price list."""

import json
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from launch.aws import session as aws
from launch.request.launch_config import Target

# The price list is served from few regions, whatever region it is about.
_PRICES_REGION = "us-east-1"


def estimate(target: Target, session: Any, component: str = "Training") -> str:
    """One line: what MaxRuntime costs on demand, or why that is not known.

    `component` is what the price list calls the use: Training or Processing.
    """
    machines = [(group.instance_type, group.instance_count) for group in target.instance_groups]
    machines = machines or [(target.instance_type or "", target.instance_count)]
    hours = target.max_runtime_s / 3600
    try:
        hourly = sum(_hourly_price(kind, session, component) * count for kind, count in machines)
    except LookupError as error:
        return f"cost: the price list has no entry for {error.args[0]} in {session.region_name}"
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else str(error)
        return (
            f"cost: unknown, the price list did not answer ({code}); pricing:GetProducts allows it"
        )
    line = (
        f"cost: at most ${hourly * hours:,.2f} on demand for {hours:g} h (${hourly:,.2f} an hour)"
    )
    return f"{line}; {_about_spot(target)}" if component == "Training" else line


def _about_spot(target: Target) -> str:
    if target.spot:
        return "a spot job is billed less, AWS says up to 90 %; the end shows what it saved"
    return "target.spot=true is billed less, AWS says up to 90 %"


def _hourly_price(instance_type: str, session: Any, component: str) -> float:
    """US dollars an hour on demand; LookupError naming the type if not listed."""
    filters = {
        "regionCode": session.region_name,
        "instanceName": instance_type,
        "component": component,
    }
    answer = aws.client(session, "pricing", region_name=_PRICES_REGION).get_products(
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
