//! What every binary does around its work: telemetry, shutdown, backoff.
