"""The support workload: a shop's customer service over a small generated order database."""

from __future__ import annotations

import copy
import json
import random

from suffixspec_traces.record.base import (
    Arguments,
    Step,
    Task,
    ToolFailure,
    argument,
    example,
    request,
    tool,
)

SYSTEM = (
    "You are a customer service agent of a web shop. You look things up and change them by calling "
    "tools. You are polite, you answer in a few sentences, and you always repeat order numbers, "
    "prices and addresses exactly."
)
TOOLS = (
    tool("find_customer", "Find a customer.", email="e-mail address"),
    tool("get_order", "Get an order.", order_id="order number"),
    tool("track_parcel", "Where an order's parcel is.", order_id="order number"),
    tool("change_address", "Change where an order goes.", order_id="order number", address="new"),
    tool("refund_item", "Refund one item.", order_id="order number", sku="article number"),
)
_EXAMPLES = (
    *example(
        "get_order",
        {"order_id": "W100000"},
        '{"order_id": "W100000", "status": "shipped", "items": [{"sku": "A1111", "name": "mug", '
        '"price": 8.5, "quantity": 2}, {"sku": "A2222", "name": "scarf", "price": 21.0, '
        '"quantity": 1}], "total": 38.0, "ship_to": "5 High Street, 1001 Oldtown"}',
        "Please list the items of the order and the address it goes to.",
        "Order W100000 holds:\n\n- 2 x mug, 8.5 each, article A1111\n- 1 x scarf, 21.0 each, "
        "article A2222\n\nThe total is 38.0. It goes to 5 High Street, 1001 Oldtown.",
    ),
    *example(
        "track_parcel",
        {"order_id": "W100000"},
        '{"order_id": "W100000", "status": "shipped", "stations": [{"date": "2025-04-02", '
        '"place": "warehouse"}, {"date": "2025-04-03", "place": "delivery van"}]}',
        "Where is it now?",
        "The parcel of order W100000 was in the warehouse on 2025-04-02, and it is in the delivery "
        "van since 2025-04-03.",
    ),
)
_FIRST = ("Ada", "Bruno", "Chiara", "Deniz", "Elif", "Femi", "Greta", "Hugo", "Ines", "Jonas")
_LAST = ("Abel", "Brandt", "Costa", "Duarte", "Eriksen", "Fontaine", "Grant", "Hansen", "Ito")
_STREETS = ("Mill Lane", "Harbour Road", "Elm Street", "Station Road", "Orchard Way", "Hill Street")
_CITIES = ("4401 Bridgeton", "7730 Eastport", "2215 Northfield", "9108 Lakeside", "3352 Weston")
_GOODS = (
    ("desk lamp", 39.9), ("wool blanket", 64.5), ("rain jacket", 89.0), ("tea pot", 27.25),
    ("bicycle bell", 12.8), ("notebook set", 15.0), ("running shoes", 109.95),
    ("water bottle", 18.4), ("backpack", 74.0), ("headphones", 129.0), ("kitchen scale", 31.6),
)  # fmt: skip
_STATIONS = ("warehouse", "sorting centre Eastport", "sorting centre Weston", "delivery van")


class Shop:
    """Customers and orders in memory; every tool answers with JSON."""

    def __init__(self, customers: dict[str, Arguments], orders: dict[str, Arguments]) -> None:
        self.customers = customers
        self.orders = orders

    def call(self, name: str, arguments: Arguments) -> str:
        """Run one of the shop's tools."""
        if name == "find_customer":
            email = argument(arguments, "email").strip().lower()
            if email not in self.customers:
                raise ToolFailure(f"error: no customer with the e-mail address {email}")
            return _show(self.customers[email])
        order = self._order(arguments) if name in _ORDER_TOOLS else None
        if name == "get_order" and order is not None:
            return _show({key: value for key, value in order.items() if key != "parcel"})
        if name == "track_parcel" and order is not None:
            return _show({"order_id": order["order_id"], "status": order["status"],
                          "stations": order["parcel"]})  # fmt: skip
        if name == "change_address" and order is not None:
            return self._change_address(order, argument(arguments, "address"))
        if name == "refund_item" and order is not None:
            return self._refund(order, argument(arguments, "sku"))
        raise ToolFailure(f"error: there is no tool {name!r}")

    def close(self) -> None:
        """Nothing outlives the object."""

    def _order(self, arguments: Arguments) -> Arguments:
        number = argument(arguments, "order_id").strip().lstrip("#").upper()
        if number not in self.orders:
            raise ToolFailure(f"error: no order {number}")
        return self.orders[number]

    def _change_address(self, order: Arguments, address: str) -> str:
        if order["status"] == "delivered":
            raise ToolFailure(f"error: order {order['order_id']} has been delivered already")
        order["ship_to"] = address
        return _show({"order_id": order["order_id"], "ship_to": address, "changed": True})

    def _refund(self, order: Arguments, sku: str) -> str:
        item = next((i for i in order["items"] if i["sku"] == sku), None)
        if item is None:
            raise ToolFailure(f"error: order {order['order_id']} has no article {sku}")
        item["refunded"] = True
        amount = round(item["price"] * item["quantity"], 2)
        return _show({"order_id": order["order_id"], "sku": sku, "refund": amount, "to": "card"})


_ORDER_TOOLS = ("get_order", "track_parcel", "change_address", "refund_item")


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _wish(story: str, name: str, arguments: Arguments, follow_up: str) -> Step:
    """The customer's words, and the desk's note which tool serves them."""
    return Step(f"{story}\n{request(name, arguments)}", name, arguments, follow_up)


def make_task(seed: int, number: int) -> Task:
    """A customer, two orders, and four wishes about one of them."""
    rng = random.Random(f"support-{seed}-{number}")
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    email = f"{first}.{last}@example.com".lower()
    home = f"{rng.randint(2, 180)} {rng.choice(_STREETS)}, {rng.choice(_CITIES)}"
    orders = {o["order_id"]: o for o in (_order(rng, home), _order(rng, home))}
    order = next(iter(orders.values()))
    customer = {"name": f"{first} {last}", "email": email, "address": home, "orders": list(orders)}
    address = f"{rng.randint(2, 180)} {rng.choice(_STREETS)}, {rng.choice(_CITIES)}"
    item = rng.choice(order["items"])
    number_, sku = order["order_id"], item["sku"]
    wishes = [
        _wish(
            "Where is my parcel?",
            "track_parcel",
            {"order_id": number_},
            "Please list every station of the parcel with its date, in order.",
        ),
        _wish(
            f"Please send order {number_} to {address} instead.",
            "change_address",
            {"order_id": number_, "address": address},
            "Please confirm the new address in an e-mail to me, with the order number.",
        ),
        _wish(
            f"The {item['name']} arrived broken and I want my money back.",
            "refund_item",
            {"order_id": number_, "sku": sku},
            "How much do I get back, for which article, and how? Please confirm it in writing.",
        ),
    ]
    rng.shuffle(wishes)
    opening = _wish(
        f"Hello, I am {first} {last} and I have a question about order {number_}.",
        "get_order",
        {"order_id": number_},
        "Please list the items of the order with quantity, price and article number, and the "
        "address it goes to.",
    )
    account = _wish(
        "Which orders do I have with you?",
        "find_customer",
        {"email": email},
        "Please list my orders and my address, and thank me for my patience.",
    )
    steps = (opening, *wishes[:2], account) if rng.random() < 0.5 else (opening, *wishes)
    return Task(
        f"support-{seed}-{number:04d}",
        "support",
        SYSTEM,
        TOOLS,
        _EXAMPLES,
        steps,
        lambda: Shop({email: customer}, copy.deepcopy(orders)),
    )


def _order(rng: random.Random, home: str) -> Arguments:
    items: list[Arguments] = [
        {"sku": f"A{rng.randint(1000, 9999)}", "name": name, "price": price,
         "quantity": rng.randint(1, 3)}
        for name, price in rng.sample(_GOODS, rng.randint(2, 3))
    ]  # fmt: skip
    day = rng.randint(1, 20)
    count = rng.randint(2, 4)
    return {
        "order_id": f"W{rng.randint(100000, 999999)}",
        "status": "shipped",
        "items": items,
        "total": round(sum(i["price"] * i["quantity"] for i in items), 2),
        "ship_to": home,
        "parcel": [
            {"date": f"2025-05-{day + i:02d}", "place": place}
            for i, place in enumerate(_STATIONS[:count])
        ],
    }
