//! The real binary, end to end: one file per action or command, one test binary.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests stop at what is wrong, and find programs on PATH"
)]

mod act;
mod act_allowlist;
mod act_artifact_server;
mod act_artifacts;
mod act_downstream;
mod act_first_use;
mod act_hostile;
mod act_hostile_artifacts;
mod act_new_user;
mod act_stats;
mod act_terraform;
#[cfg(feature = "relay")]
mod act_upstream;
mod act_warm_fork;
mod allowlist;
mod allowlist_evidence;
mod allowlist_online;
mod artifact_download;
mod artifact_download_inputs;
mod artifact_forgejo;
mod artifact_in_between;
mod artifact_proxy;
mod artifact_round_trip;
mod artifact_runs_out;
mod artifact_upload;
mod artifact_upload_again;
mod artifact_upload_faults;
mod artifact_upload_inputs;
mod artifact_upload_killed;
mod artifact_upload_limits;
mod artifact_upload_race;
mod aws_setup;
mod checkout;
mod checkout_lfs;
#[path = "../peers/client.rs"]
mod client;
mod contracts;
mod demo;
mod deployment;
mod doctor;
mod doctor_downstream;
mod document_names;
mod documents;
mod downstream_file;
mod ecosystem;
mod error_codes;
mod general;
mod init;
mod install;
mod levels;
mod levels_sync;
mod logs;
mod oidc_configure;
mod oidc_containers;
mod peer_artifact;
mod peer_gitea;
mod peer_glob;
mod peer_stores;
mod quarantine;
mod relay_backend_files;
mod relay_backup;
mod relay_cli;
mod relay_crash;
mod relay_flood;
mod relay_health;
mod relay_import;
mod relay_job_logs;
mod relay_lambda;
mod relay_process;
mod relay_redis;
mod relay_replay;
mod relay_replicas;
mod relay_traces;
mod report;
mod report_quarantine;
mod reproduce;
mod sccache;
mod stats;
mod stats_attempts;
mod stats_collect;
mod support;
