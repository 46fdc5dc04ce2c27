//! Test support: a private RabbitMQ, the proxy in process, a client driven step by step.
