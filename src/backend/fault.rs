//! Makes the n-th backend call fail.
