//! A real Redis server on loopback, for the simulator and for tests.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Every change is on disk before it is answered. Without these, nothing ever is.
pub const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Returns when the server has loaded its data. By then it has the port, or has ended since another program has it.
pub fn start(port: u16, folder: &Path, arguments: &[&str]) -> io::Result<Child> {
    let mut child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let log = child.stdout.take().map(BufReader::new);
    let mut lines = log.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
    if lines.any(|line| line.contains("Ready to accept connections")) {
        return Ok(child);
    }
    child.wait()?;
    Err(io::Error::other("the server ended"))
}
