"""
CloudEvents from a Kafka topic into a JetStream stream, and back.

    pip install ce-nats aiokafka
    python examples/kafka_bridge.py to-nats orders orders.from-kafka --kafka 127.0.0.1:9092 --nats nats://127.0.0.1:4222
    python examples/kafka_bridge.py to-kafka ORDERS orders-copy

A record's offset is committed when the stream has stored its event, and a message is acknowledged when Kafka has stored
its record, so that nothing is lost when the bridge is killed; a copy that is sent again into the stream is stored once.
"""
