//! Live pools, defaults, exit and fork.
