//! The operators' pages, in the HUD's layout.

pub(crate) mod deliveries;
pub(crate) mod login;
