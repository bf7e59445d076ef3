//! A real ClickHouse server on loopback: the current engine in PyPI's `chdb`.

use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A running server with its own folder. Dropping it stops the server.
#[derive(Debug)]
pub struct ClickHouse {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl ClickHouse {
    /// The engine of `chdb`, served by `tests/peers/clickhouse_chdb.py`.
    pub fn start() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = crate::unused_port();
        let child = spawn(folder.path(), port)?;
        Ok(Self { child, port, folder })
    }

    /// Its address for `--results`. The database doesn't exist yet.
    pub fn url(&self) -> String {
        format!("clickhouse+http://crcr:let%20%27me%27%20in@127.0.0.1:{}/crcr_test", self.port)
    }

    /// Kills the server and keeps its files.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Starts it again after [`ClickHouse::kill`], on the same port.
    pub fn again(&mut self) -> io::Result<()> {
        self.child = spawn(self.folder.path(), self.port)?;
        Ok(())
    }
}

impl Drop for ClickHouse {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.kill());
    }
}

/// Returns once the server listens.
fn spawn(folder: &Path, port: u16) -> io::Result<Child> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut child = Command::new("python3")
        .arg(root.join("tests/peers/clickhouse_chdb.py"))
        .arg("data")
        .arg(port.to_string())
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it was piped");
    BufReader::new(stdout).read_line(&mut line)?;
    if line.is_empty() {
        drop(child.kill());
        return Err(io::Error::other("the server doesn't start"));
    }
    Ok(child)
}
