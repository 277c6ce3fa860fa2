"""Communication between the services: protobuf messages, the queue, the teacher client, authentication."""
