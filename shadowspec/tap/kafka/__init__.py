"""The consumer and producer of Kafka topics. Only these modules import the client library.

In: topics and settings.
Out: raw records in delivery order; committed offsets.
Imports: types, errors.

Only modules that connect to a broker import the client library: a configuration is read without it.
"""

from shadowspec.tap.kafka.kafka_settings import KafkaSecurity, KafkaSettings

__all__ = ["KafkaSecurity", "KafkaSettings"]
