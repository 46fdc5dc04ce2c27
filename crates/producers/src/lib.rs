//! Publishes numbered messages to consumers, with confirms.
