"""Kafka: the consumer of the mirrored topics (`shadowspec.tap.kafka.consumer`), and its settings.

The client library is imported by what speaks to a broker alone: a configuration is read without it.
"""

from shadowspec.tap.kafka.settings import KafkaSecurity, KafkaSettings
from shadowspec.tap.kafka.values import Changes, CommitOutcome, Loss, LostRange

__all__ = ["Changes", "CommitOutcome", "KafkaSecurity", "KafkaSettings", "Loss", "LostRange"]
