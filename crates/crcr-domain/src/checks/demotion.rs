//! Names that `crcr levels sync` gives to demotions, and by which the relay recognises them.

/// The branch is `crcr-demotion/<owner>/<repository>`, in the upstream repository itself.
pub const DEMOTION_BRANCH: &str = "crcr-demotion";
pub const DEMOTION_LABEL: &str = "crcr-auto-demotion";
