//! What a backend takes and how its failures are explained: its own file, the filter of dispatches, and probes.

pub(crate) mod backend_file;
pub(crate) mod dispatch_filter;
