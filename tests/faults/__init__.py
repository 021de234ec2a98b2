"""The fault test: real Kafka, real Postgres, workers that are killed, and nothing lost or counted twice."""
