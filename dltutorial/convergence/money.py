"""What device-hours cost in a cloud, from a small dated table of list prices.

In: seconds that devices were held, a device's name, a contract. Out: US dollars, or None where the table has no price:
the course guesses none. Prices change; the table says from when and where each is.
"""

import math
from dataclasses import dataclass

from dltutorial.errors import CourseError
from dltutorial.record import plots

HOURS_PER_YEAR = 365 * 24
CONTRACTS = ("pay as you go", "reserved 1 year", "reserved 3 years", "spot")


@dataclass(frozen=True)
class Price:
    """One row of the table.

    Attributes:
        instance, gpu, gpus: the virtual machine and what is in it.
        contract: how it is rented.
        usd_per_hour: for the whole machine.
        date, source: from when, and where it was read.
    """

    instance: str
    gpu: str
    gpus: int
    contract: str
    usd_per_hour: float
    date: str
    source: str

    @property
    def usd_per_device_hour(self) -> float:
        """For one of its GPUs."""
        return self.usd_per_hour / self.gpus

    def usd(self, device_s: float) -> float:
        """For devices held so long, billed by the second."""
        return device_s / 3600 * self.usd_per_device_hour


def prices() -> tuple[Price, ...]:
    """The whole table."""
    return tuple(
        Price(r["instance"], r["gpu"], int(r["gpus"]), r["contract"], float(r["usd_per_hour"]), r["date"], r["source"])
        for r in plots.reference("prices")
    )


def price(device: str, contract: str = "pay as you go") -> Price | None:
    """The cheapest price of a device under a contract; None if the table has none.

    Args:
        device: its name, such as "V100", or as the machine reports it, "Tesla V100-SXM2-16GB".
        contract: one of ``CONTRACTS``.

    Raises:
        CourseError: no such contract.
    """
    if contract not in CONTRACTS:
        raise CourseError(f"no contract {contract!r}; choose one of: {', '.join(CONTRACTS)}")
    fitting = [p for p in prices() if p.contract == contract and p.gpu.upper() in device.upper()]
    return min(fitting, key=lambda p: p.usd_per_device_hour, default=None)


def of_years(years: float, usd_per_hour: float) -> float:
    """What renting one device for so many years costs.

    Raises:
        CourseError: a time or a price that is not positive.
    """
    if not (0 < years < math.inf and 0 < usd_per_hour < math.inf):
        raise CourseError(f"{years} years at {usd_per_hour} $/h cost nothing that can be said; give positive numbers")
    return years * HOURS_PER_YEAR * usd_per_hour


def published(what: str) -> list[tuple[float, str]]:
    """(value, source) of each published figure of that name about training GPT-3.

    Raises:
        CourseError: there is none.
    """
    found = [(float(row["value"]), row["source"]) for row in plots.reference("gpt3_training") if row["what"] == what]
    if not found:
        raise CourseError(f"nothing published about {what!r} in reference/gpt3_training.csv; look at its first column")
    return found
