//! End-to-end tests on a real RabbitMQ: everything is under `tests/`.
