"""Samples on their way to the model: orders, batches of any span fetched ahead, streams, evaluation."""

from __future__ import annotations

from swell.data.evaluation import evaluation_loader
from swell.data.feed import Feed
from swell.data.orders import orders
from swell.data.source import BatchSource
from swell.data.span import Span
from swell.data.stream import OwnStream, Stream

__all__ = ["BatchSource", "Feed", "OwnStream", "Span", "Stream", "evaluation_loader", "orders"]
