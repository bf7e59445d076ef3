//! Real ClickHouse servers on loopback: Debian's of 2018, and the current engine in PyPI's `chdb`.

use std::io::{self, BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(120);

const CONFIG: &str = "<yandex>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>127.0.0.1</listen_host>
  <http_port>PORT</http_port>
  <path>./data/</path>
  <tmp_path>./tmp/</tmp_path>
  <users_config>users.xml</users_config>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
  <mark_cache_size>67108864</mark_cache_size>
</yandex>
";

const USERS: &str = "<yandex>
  <profiles><default></default></profiles>
  <users><crcr>
    <password>let 'me' in</password>
    <networks><ip>127.0.0.1</ip></networks>
    <profile>default</profile>
    <quota>default</quota>
  </crcr></users>
  <quotas><default></default></quotas>
</yandex>
";

/// A running server with its own folder. Dropping it stops the server.
#[derive(Debug)]
pub struct ClickHouse {
    child: Child,
    port: u16,
    engine: Engine,
    folder: TempDir,
}

#[derive(Debug, Clone, Copy)]
enum Engine {
    Debian,
    Chdb,
}

impl ClickHouse {
    pub fn debian() -> io::Result<Self> {
        Self::start(Engine::Debian)
    }

    /// The engine of `chdb`, served by `tests/peers/clickhouse_chdb.py`.
    pub fn chdb() -> io::Result<Self> {
        Self::start(Engine::Chdb)
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
        self.child = spawn(self.engine, self.folder.path(), self.port)?;
        Ok(())
    }

    fn start(engine: Engine) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = spawn(engine, folder.path(), port)?;
        Ok(Self { child, port, engine, folder })
    }
}

impl Drop for ClickHouse {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.kill());
    }
}

fn spawn(engine: Engine, folder: &Path, port: u16) -> io::Result<Child> {
    let mut command = match engine {
        Engine::Debian => {
            std::fs::write(folder.join("config.xml"), CONFIG.replace("PORT", &port.to_string()))?;
            std::fs::write(folder.join("users.xml"), USERS)?;
            let mut command = Command::new("clickhouse-server");
            command.arg("--config-file=config.xml").stdout(Stdio::null());
            command
        }
        Engine::Chdb => {
            let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
            let mut command = Command::new("python3");
            command.arg(root.join("tests/peers/clickhouse_chdb.py")).arg("data");
            command.arg(port.to_string()).stdout(Stdio::piped());
            command
        }
    };
    let mut child = command.current_dir(folder).stderr(Stdio::null()).spawn()?;
    if let Some(stdout) = child.stdout.take() {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let started = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if started.elapsed() > START_TIMEOUT || child.try_wait()?.is_some() {
            drop(child.kill());
            return Err(io::Error::other("the server doesn't start"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(child)
}
