//! Publishing with confirms.
