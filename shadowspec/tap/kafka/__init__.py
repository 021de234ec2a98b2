"""The consumer and producer of Kafka topics. Only these modules import the client library.

In: topics and settings.
Out: raw records in delivery order; committed offsets.
Imports: types, errors.

The client library is imported only by what speaks to a broker: a configuration is read without it.
"""

from shadowspec.tap.kafka.kafka_settings import KafkaSecurity, KafkaSettings

__all__ = ["KafkaSecurity", "KafkaSettings"]
