//! Connects instances by the thousand and says what arrived and what is missing.
