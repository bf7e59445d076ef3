//! What exists only for the deployed relay and its HUD, and goes when they are gone.

pub(crate) mod forward;
pub(crate) mod results_endpoint;
