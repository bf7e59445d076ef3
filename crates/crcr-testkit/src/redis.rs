//! Real Redis servers on loopback.

use std::fs::{self, File};
use std::io;
use std::process::{Child, Command};

use crcr_standin::redis::{self, DURABLE};
use tempfile::TempDir;

/// A running server with its own folder. Dropping it stops the server.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    settings: RedisSettings,
    folder: TempDir,
}

#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// Whether every change is on disk before it is answered; otherwise nothing ever is.
    pub is_durable: bool,
    /// Further arguments of `redis-server`.
    pub arguments: Vec<String>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self { is_durable: true, arguments: vec![] }
    }
}

impl RedisServer {
    pub fn start(settings: RedisSettings) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = crate::unused_port();
        let child = start(&settings, &folder, port)?;
        Ok(Self { child, port, settings, folder })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `kill -9`; its files stay.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// The length of the file of changes, in bytes.
    pub fn log_bytes(&self) -> io::Result<u64> {
        Ok(self.log()?.metadata()?.len())
    }

    /// `kill -9`, and the file of changes as a power cut leaves it when it was last synced with `synced`
    /// bytes.
    pub fn cut_power(&mut self, synced: u64) -> io::Result<()> {
        self.kill()?;
        self.log()?.set_len(synced)
    }

    fn log(&self) -> io::Result<File> {
        // Since Redis 7 in a folder, in parts; changes are added to the last one.
        let folder = self.folder.path().join("appendonlydir");
        let path = if folder.is_dir() {
            let parts = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
            parts.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max()
        } else {
            Some(self.folder.path().join("appendonly.aof"))
        };
        let path = path.ok_or_else(|| io::Error::other("there is no file of changes"))?;
        File::options().write(true).open(path)
    }

    /// Starts it again after [`RedisServer::kill`], on the same port.
    pub fn again(&mut self) -> io::Result<()> {
        self.child = start(&self.settings, &self.folder, self.port)?;
        Ok(())
    }

    /// Runs a command in `redis-cli`, and returns what it printed.
    pub fn command(&self, arguments: &[&str]) -> io::Result<String> {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(arguments).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.kill());
    }
}

fn start(settings: &RedisSettings, folder: &TempDir, port: u16) -> io::Result<Child> {
    let durable: &[&str] = if settings.is_durable { &DURABLE } else { &[] };
    let further = settings.arguments.iter().map(String::as_str);
    let arguments: Vec<&str> = durable.iter().copied().chain(further).collect();
    redis::start(port, folder.path(), &arguments)
}
