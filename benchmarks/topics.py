"""Filling a topic as fast as the broker takes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def fill_topic(address: str, topic: str, messages: Iterable[tuple[int, Any, Any]]) -> None:
    """Send messages, each with its partition, its key (None for none) and its value; both become JSON."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "batch.size": 1_000_000, "log_level": 0})
    for number, (partition, key, value) in enumerate(messages):
        said = None if key is None else json.dumps(key).encode()
        while True:
            try:
                producer.produce(topic, value=json.dumps(value).encode(), key=said, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(120)
