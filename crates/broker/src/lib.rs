//! Everything that knows AMQP: connections, topology, lanes, the ack ledger, the publisher.
