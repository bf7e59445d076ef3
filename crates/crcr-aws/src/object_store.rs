//! Where the archive of webhooks, logs and rows of tests are kept: a folder or a bucket of S3.

use std::ffi::OsString;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{RequestChecksumCalculation, ResponseChecksumValidation};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_types::service_config::ServiceConfigKey;
use bytes::{Bytes, BytesMut};
use url::Url;

use crate::credentials::with_sendable_credentials;
use crate::sdk_error::sdk_cause;

/// S3's limit, in bytes.
const MAX_KEY: usize = 1024;
/// How often a conditional write is tried that collides with another one.
const CONFLICT_TRIES: u32 = 5;

#[derive(Debug, Clone)]
pub enum ObjectStore {
    /// Each object is a file; keys are paths below this folder.
    Folder(PathBuf),
    S3(S3Prefix),
}

/// A bucket and the start of all keys in it.
#[derive(Debug, Clone)]
pub struct S3Prefix {
    client: Client,
    bucket: String,
    /// Empty, or ends with a slash.
    prefix: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectStoreError {
    #[error("expected file:FOLDER or s3://BUCKET/PREFIX")]
    Url,
    /// A part of a key is empty, `.`, `..` or has characters that a file name can't have everywhere.
    #[error("`{0}` isn't a key of an object")]
    Key(String),
    #[error("`{key}` is larger than {max} bytes")]
    TooLarge { key: String, max: usize },
    #[error("`{place}` can't be used: {reason}")]
    Unavailable { place: String, reason: String },
}

/// Why a call of AWS failed: its answer, or the innermost cause.
pub fn reason<E: std::error::Error + ProvideErrorMetadata + 'static>(
    error: &SdkError<E>,
) -> String {
    let status = error.raw_response().map(|response| response.status().as_u16());
    match (status, error.code(), error.message()) {
        (Some(status), Some(code), Some(message)) => format!("answered {status} {code}: {message}"),
        (Some(status), Some(code), None) => format!("answered {status} {code}"),
        (Some(status), None, _) => format!("answered {status}"),
        (None, ..) => sdk_cause(error),
    }
}

impl ObjectStore {
    /// Opens `file:FOLDER` or `s3://BUCKET/PREFIX`. S3 is configured as for every AWS tool: region,
    /// endpoint and credentials come from the environment, profiles or the machine's role.
    pub async fn open(url: &str) -> Result<Self, ObjectStoreError> {
        match parse(url).ok_or(ObjectStoreError::Url)? {
            Place::Folder(folder) => Ok(Self::Folder(folder.into())),
            Place::S3 { bucket, prefix } => {
                let shared = aws_config::defaults(BehaviorVersion::latest()).load().await;
                let shared = with_sendable_credentials(shared);
                Ok(Self::S3(S3Prefix::new(bucket, prefix, &shared)))
            }
        }
    }

    /// Whether [`Self::open`] takes it.
    pub fn is_url(url: &str) -> bool {
        parse(url).is_some()
    }

    /// Stores an object in place of the one that may be there.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), ObjectStoreError> {
        check_key(key)?;
        match self {
            Self::Folder(root) => {
                let path = root.join(key);
                blocking(key, move || write_file(&path, &body, true)).await.map(drop)
            }
            Self::S3(s3) => s3.put(key, body, true).await.map(drop),
        }
    }

    /// Stores an object unless there is one, which stays as it is. Returns whether it was stored.
    pub async fn put_new(&self, key: &str, body: Bytes) -> Result<bool, ObjectStoreError> {
        check_key(key)?;
        match self {
            Self::Folder(root) => {
                let path = root.join(key);
                blocking(key, move || write_file(&path, &body, false)).await
            }
            Self::S3(s3) => s3.put(key, body, false).await,
        }
    }

    /// An object of at most `max` bytes. `None` if there is no such object.
    pub async fn get(&self, key: &str, max: usize) -> Result<Option<Bytes>, ObjectStoreError> {
        check_key(key)?;
        let found = match self {
            Self::Folder(root) => {
                let path = root.join(key);
                blocking(key, move || read_file(&path, max)).await?
            }
            Self::S3(s3) => s3.get(key, max).await?,
        };
        match found {
            Some(body) if body.len() > max => {
                Err(ObjectStoreError::TooLarge { key: key.to_owned(), max })
            }
            found => Ok(found),
        }
    }

    /// The last `max` bytes of an object, or all of a smaller one, and its size. `None` if there is no such object.
    pub async fn tail(
        &self,
        key: &str,
        max: usize,
    ) -> Result<Option<(Bytes, u64)>, ObjectStoreError> {
        check_key(key)?;
        match self {
            Self::Folder(root) => {
                let path = root.join(key);
                blocking(key, move || read_tail(&path, max)).await
            }
            Self::S3(s3) => s3.tail(key, max).await,
        }
    }

    /// `length` bytes of an object from `start` on, or less at its end. `None` if there is no such object.
    pub async fn range(
        &self,
        key: &str,
        start: u64,
        length: usize,
    ) -> Result<Option<Bytes>, ObjectStoreError> {
        check_key(key)?;
        let found = match self {
            Self::Folder(root) => {
                let path = root.join(key);
                blocking(key, move || read_range(&path, start, length)).await?
            }
            Self::S3(s3) => {
                let range = format!("bytes={start}-{}", start + length.max(1) as u64 - 1);
                s3.range(key, &range, length).await?
            }
        };
        Ok(found)
    }

    /// The first `limit` keys, ordered by bytes, that start with `prefix` and come after `after`.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, ObjectStoreError> {
        match self {
            Self::Folder(root) => {
                let (root, start) = (root.clone(), prefix.to_owned());
                let after = after.unwrap_or_default().to_owned();
                blocking(prefix, move || {
                    let mut keys = vec![];
                    list_folder(&root, "", &start, &after, limit, &mut keys)?;
                    Ok(keys)
                })
                .await
            }
            Self::S3(s3) => s3.list(prefix, after, limit).await,
        }
    }
}

/// Providers that refuse a bucket in the path of an address: Alibaba, Tencent, Huawei, Volcano Engine and Tigris
/// (<https://www.tigrisdata.com/blog/virtual-hosted-urls/>).
const ONLY_HOSTS_OF_BUCKETS: [&str; 6] = [
    ".aliyuncs.com",
    ".myqcloud.com",
    ".myhuaweicloud.com",
    ".storage.dev",
    ".tigris.dev",
    ".volces.com",
];

/// Whether the bucket is a part of the path of an address, and not of its host.
pub fn is_path_style(endpoint: &Url) -> bool {
    let host = endpoint.host_str().unwrap_or_default();
    !ONLY_HOSTS_OF_BUCKETS.iter().any(|provider| host.ends_with(provider))
}

/// The address of another server than Amazon's, from the environment or a profile.
fn other_server(shared: &SdkConfig) -> Option<Url> {
    let key = ServiceConfigKey::builder().service_id("S3").env("AWS_ENDPOINT_URL");
    let key = key.profile("endpoint_url").build().ok()?;
    let of_s3 = shared.service_config().and_then(|config| config.load_config(key));
    let endpoint = of_s3.or_else(|| shared.endpoint_url().map(str::to_owned))?;
    Url::parse(&endpoint).ok()
}

impl S3Prefix {
    fn new(bucket: &str, prefix: &str, shared: &SdkConfig) -> Self {
        let config = aws_sdk_s3::config::Builder::from(shared)
            // Servers other than Amazon's refuse the checksums that the SDK adds by default.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .force_path_style(other_server(shared).as_ref().is_some_and(is_path_style))
            .build();
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { client: Client::from_conf(config), bucket: bucket.to_owned(), prefix }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn unavailable<E: std::error::Error + ProvideErrorMetadata + 'static>(
        &self,
        key: &str,
        error: &SdkError<E>,
    ) -> ObjectStoreError {
        ObjectStoreError::Unavailable {
            place: format!("s3://{}/{}", self.bucket, self.key(key)),
            reason: reason(error),
        }
    }

    async fn put(&self, key: &str, body: Bytes, replace: bool) -> Result<bool, ObjectStoreError> {
        let mut tries = 1;
        loop {
            let mut put = self.client.put_object().bucket(&self.bucket).key(self.key(key));
            if !replace {
                put = put.if_none_match("*");
            }
            let error = match put.body(body.clone().into()).send().await {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            match error.raw_response().map(|response| response.status().as_u16()) {
                Some(412) => return Ok(false),
                // Another conditional write of this key is under way.
                Some(409) if tries < CONFLICT_TRIES => tries += 1,
                _ => return Err(self.unavailable(key, &error)),
            }
        }
    }

    async fn get(&self, key: &str, max: usize) -> Result<Option<Bytes>, ObjectStoreError> {
        let get = self.client.get_object().bucket(&self.bucket).key(self.key(key)).send().await;
        let object = match get {
            Ok(object) => object,
            Err(error) if error.as_service_error().is_some_and(|error| error.is_no_such_key()) => {
                return Ok(None);
            }
            Err(error) => return Err(self.unavailable(key, &error)),
        };
        self.body(key, object, max).await.map(Some)
    }

    /// Some servers refuse a range that counts from the end of an object that is smaller, so its size is asked for.
    async fn tail(&self, key: &str, max: usize) -> Result<Option<(Bytes, u64)>, ObjectStoreError> {
        let head = self.client.head_object().bucket(&self.bucket).key(self.key(key)).send().await;
        let size = match head {
            Ok(head) => head.content_length().unwrap_or_default().max(0).cast_unsigned(),
            Err(error) if error.as_service_error().is_some_and(|error| error.is_not_found()) => {
                return Ok(None);
            }
            Err(error) => return Err(self.unavailable(key, &error)),
        };
        if size == 0 {
            return Ok(Some((Bytes::new(), 0)));
        }
        let range = format!("bytes={}-", size.saturating_sub(max as u64));
        Ok(self.range(key, &range, max).await?.map(|body| (body, size)))
    }

    async fn range(
        &self,
        key: &str,
        range: &str,
        max: usize,
    ) -> Result<Option<Bytes>, ObjectStoreError> {
        let get = self.client.get_object().bucket(&self.bucket).key(self.key(key)).range(range);
        match get.send().await {
            Ok(object) => self.body(key, object, max).await.map(Some),
            Err(error) if error.as_service_error().is_some_and(|error| error.is_no_such_key()) => {
                Ok(None)
            }
            Err(error) => Err(self.unavailable(key, &error)),
        }
    }

    /// At most a chunk more than `max` bytes.
    async fn body(
        &self,
        key: &str,
        object: GetObjectOutput,
        max: usize,
    ) -> Result<Bytes, ObjectStoreError> {
        let (mut stream, mut body) = (object.body, BytesMut::new());
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|error| ObjectStoreError::Unavailable {
                place: format!("s3://{}/{}", self.bucket, self.key(key)),
                reason: error.to_string(),
            })?;
            body.extend_from_slice(&bytes);
            if body.len() > max {
                break;
            }
        }
        Ok(body.freeze())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, ObjectStoreError> {
        let mut keys = vec![];
        let mut after = after.map(|after| self.key(after));
        while keys.len() < limit {
            let page = self
                .client
                .list_objects_v2()
                .bucket(&self.bucket)
                .prefix(self.key(prefix))
                .set_start_after(after.clone())
                .send()
                .await
                .map_err(|error| self.unavailable(prefix, &error))?;
            let found = page.contents().iter().filter_map(|object| object.key());
            let before = keys.len();
            keys.extend(found.filter_map(|key| key.strip_prefix(&self.prefix)).map(str::to_owned));
            if !page.is_truncated().unwrap_or(false) || keys.len() == before {
                break;
            }
            after = keys.last().map(|key| self.key(key));
        }
        keys.truncate(limit);
        Ok(keys)
    }
}

enum Place<'a> {
    Folder(&'a str),
    S3 { bucket: &'a str, prefix: &'a str },
}

fn parse(url: &str) -> Option<Place<'_>> {
    if let Some(folder) = url.strip_prefix("file:") {
        return (!folder.is_empty()).then_some(Place::Folder(folder));
    }
    let place = url.strip_prefix("s3://")?;
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let prefix = prefix.trim_matches('/');
    let is_valid = !bucket.is_empty() && (prefix.is_empty() || is_key(prefix));
    is_valid.then_some(Place::S3 { bucket, prefix })
}

fn check_key(key: &str) -> Result<(), ObjectStoreError> {
    if is_key(key) { Ok(()) } else { Err(ObjectStoreError::Key(key.escape_debug().to_string())) }
}

/// Parts that are file names on every system, and that no shell or URL needs to quote.
fn is_key(key: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-=+@,".contains(&byte))
    };
    key.len() <= MAX_KEY && key.split('/').all(is_part)
}

async fn blocking<T: Send + 'static>(
    key: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ObjectStoreError> {
    let unavailable = |reason: String| ObjectStoreError::Unavailable { place: key.into(), reason };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| unavailable(error.to_string()))?
        .map_err(|error| unavailable(error.to_string()))
}

/// Writes a file that is whole as soon as it has its name, and durable when this returns.
fn write_file(path: &Path, body: &[u8], replace: bool) -> io::Result<bool> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(body)?;
    file.as_file().sync_all()?;
    let stored = if replace {
        file.persist(path).map(drop).map_err(|error| error.error)
    } else {
        file.persist_noclobber(path).map(drop).map_err(|error| error.error)
    };
    match stored {
        Ok(()) => {
            #[cfg(unix)]
            std::fs::File::open(folder)?.sync_all()?;
            Ok(true)
        }
        Err(error) if !replace && error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// At most one byte more than `max`, which tells that the file is too large.
fn read_file(path: &Path, max: usize) -> io::Result<Option<Bytes>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut body = vec![];
    file.take(max as u64 + 1).read_to_end(&mut body)?;
    Ok(Some(body.into()))
}

fn read_tail(path: &Path, max: usize) -> io::Result<Option<(Bytes, u64)>> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(max as u64)))?;
    let mut body = vec![];
    file.take(max as u64).read_to_end(&mut body)?;
    Ok(Some((body.into(), size)))
}

fn read_range(path: &Path, start: u64, length: usize) -> io::Result<Option<Bytes>> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(start))?;
    let mut body = vec![];
    file.take(length as u64).read_to_end(&mut body)?;
    Ok(Some(body.into()))
}

/// Adds the keys below `folder`, whose own key with its final slash is `base`.
fn list_folder(
    folder: &Path,
    base: &str,
    start: &str,
    after: &str,
    limit: usize,
    keys: &mut Vec<String>,
) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut names: Vec<(String, bool)> = vec![];
    for entry in entries {
        let entry = entry?;
        // Names that start with a dot are files that are being written.
        let name = OsString::into_string(entry.file_name()).unwrap_or_default();
        if !name.is_empty() && !name.starts_with('.') {
            let is_folder = entry.file_type()?.is_dir();
            let slash = if is_folder { "/" } else { "" };
            names.push((format!("{base}{name}{slash}"), is_folder));
        }
    }
    // With its slash a folder sorts where its keys belong.
    names.sort_unstable();
    for (key, is_folder) in names {
        if keys.len() >= limit {
            break;
        }
        let can_match = key.starts_with(start) || (is_folder && start.starts_with(&key));
        // All keys of a folder come before `after` if its own start does, unless `after` is in it.
        if !can_match || (key.as_str() <= after && !after.starts_with(&key)) {
            continue;
        }
        if is_folder {
            let name = key[base.len()..].trim_end_matches('/');
            list_folder(&folder.join(name), &key, start, after, limit, keys)?;
        } else if key.as_str() > after {
            keys.push(key);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_sdk_s3::config::{Credentials, Region, SharedCredentialsProvider};
    use aws_sdk_s3::presigning::PresigningConfig;
    use aws_types::service_config::LoadServiceConfig;
    use crcr_testkit::s3::{ACCESS_KEY, S3Server, SECRET_KEY};

    use super::*;

    const BODY: Bytes = Bytes::from_static(b"one");

    fn in_bucket(server: &S3Server) -> ObjectStore {
        let credentials = Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test");
        let shared = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(server.url().as_str())
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .build();
        ObjectStore::S3(S3Prefix::new("kept", "below/here", &shared))
    }

    /// Both kinds do the same.
    async fn check(store: &ObjectStore) {
        assert_eq!(store.list("", None, 9).await.unwrap(), [""; 0]);
        assert_eq!(store.get("a/b", 9).await.unwrap(), None);
        assert!(store.put_new("a/b", BODY).await.unwrap());
        assert!(!store.put_new("a/b", Bytes::from_static(b"two")).await.unwrap());
        assert_eq!(store.get("a/b", 3).await.unwrap(), Some(BODY), "the first one stays");
        let error = store.get("a/b", 2).await.unwrap_err().to_string();
        assert_eq!(error, "`a/b` is larger than 2 bytes");
        store.put("a/b", Bytes::from_static(b"two")).await.unwrap();
        assert_eq!(store.get("a/b", 9).await.unwrap().unwrap(), "two");
        store.put("range", Bytes::from_static(b"0123456789")).await.unwrap();
        assert_eq!(store.tail("range", 3).await.unwrap().unwrap(), (Bytes::from("789"), 10));
        assert_eq!(store.tail("range", 99).await.unwrap().unwrap().0, "0123456789");
        assert_eq!(store.range("range", 2, 3).await.unwrap().unwrap(), "234");
        assert_eq!(store.range("range", 8, 9).await.unwrap().unwrap(), "89");
        assert_eq!(store.tail("no", 3).await.unwrap(), None);
        assert_eq!(store.range("no", 0, 3).await.unwrap(), None);
        // `-` sorts before `/`, which sorts before letters.
        for key in ["a-/x", "a/c/d", "a/c.e", "ab", "b"] {
            store.put(key, BODY).await.unwrap();
        }
        let all = ["a-/x", "a/b", "a/c.e", "a/c/d", "ab", "b", "range"];
        assert_eq!(store.list("", None, 9).await.unwrap(), all);
        assert_eq!(store.list("a/", None, 9).await.unwrap(), all[1..4]);
        assert_eq!(store.list("a/c", None, 9).await.unwrap(), all[2..4]);
        for (at, after) in all.iter().enumerate() {
            let rest = store.list("", Some(after), 2).await.unwrap();
            assert_eq!(rest, all[at + 1..(at + 3).min(all.len())], "after {after}");
        }
        for key in ["", "/a", "a//b", "../a", "a/./b", ".a", "a\\b", "a b", "a\nb", "ä"] {
            assert!(matches!(store.put(key, BODY).await, Err(ObjectStoreError::Key(_))), "{key}");
            assert!(store.get(key, 1).await.is_err() && store.put_new(key, BODY).await.is_err());
        }
    }

    #[tokio::test]
    async fn folder_and_bucket_keep_objects_alike() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file:{}", folder.path().join("kept").display());
        check(&ObjectStore::open(&url).await.unwrap()).await;
        let server = S3Server::start("kept").unwrap();
        check(&in_bucket(&server)).await;
        assert!(server.keys().iter().all(|key| key.starts_with("below/here/")));
    }

    /// `AWS_ENDPOINT_URL_S3`.
    #[derive(Debug)]
    struct OwnEndpoint;

    impl LoadServiceConfig for OwnEndpoint {
        fn load_config(&self, key: ServiceConfigKey<'_>) -> Option<String> {
            let is_asked = (key.service_id(), key.env()) == ("S3", "AWS_ENDPOINT_URL");
            is_asked.then(|| "http://minio.example:9000".to_owned())
        }
    }

    /// AWS has a host for each bucket, and most other servers have one for all.
    #[tokio::test]
    async fn bucket_is_in_the_host_of_aws_and_in_the_path_of_other_servers() {
        let config = || {
            let credentials = Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test");
            SdkConfig::builder()
                .behavior_version(BehaviorVersion::latest())
                .region(Region::new("eu-south-2"))
                .credentials_provider(SharedCredentialsProvider::new(credentials))
                .http_client(aws_smithy_http_client::Builder::new().build_http())
        };
        let oss = "https://oss-cn-shanghai.aliyuncs.com";
        for (config, start) in [
            (config().build(), "https://kept.s3.eu-south-2.amazonaws.com/below/a?"),
            (config().endpoint_url("http://h.example/").build(), "http://h.example/kept/below/a?"),
            (
                config().service_config(OwnEndpoint).build(),
                "http://minio.example:9000/kept/below/a?",
            ),
            (
                config().endpoint_url(oss).build(),
                "https://kept.oss-cn-shanghai.aliyuncs.com/below/a?",
            ),
        ] {
            let s3 = S3Prefix::new("kept", "below", &config);
            let minute = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
            let get = s3.client.get_object().bucket(&s3.bucket).key(s3.key("a"));
            let address = get.presigned(minute).await.unwrap().uri().to_owned();
            assert!(address.starts_with(start), "{address}");
        }
    }

    #[tokio::test]
    async fn error_of_a_bucket_has_what_s3_answered_or_why_nobody_did() {
        let server = S3Server::start("other").unwrap();
        let error = in_bucket(&server).list("", None, 9).await.unwrap_err().to_string();
        assert!(
            error.starts_with("`s3://kept/below/here/` can't be used: answered 404 NoSuchBucket"),
            "{error}"
        );
        let shared = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .build();
        let without_region = ObjectStore::S3(S3Prefix::new("kept", "", &shared));
        let error = without_region.list("", None, 9).await.unwrap_err().to_string();
        let (_, why) = error.split_once("can't be used: ").unwrap();
        assert_eq!(why, "A region must be set when sending requests to S3.");
    }

    /// Only in a folder: the test's S3 server checks conditions before it locks.
    #[tokio::test]
    async fn of_many_writers_of_one_key_one_stores_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = ObjectStore::Folder(folder.path().to_owned());
        let put = |n: u8| {
            let store = store.clone();
            async move { store.put_new("one", Bytes::from(vec![n; 100])).await.unwrap() }
        };
        let stored = futures_util::future::join_all((0..8).map(put)).await;
        assert_eq!(stored.iter().filter(|stored| **stored).count(), 1);
        let body = store.get("one", 100).await.unwrap().unwrap();
        assert!(body.len() == 100 && body.iter().all(|byte| *byte == body[0]));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[tokio::test]
    async fn address_without_a_bucket_or_folder_or_of_another_scheme_is_refused() {
        for url in ["", "file:", "s3://", "s3://bucket/../x", "https://bucket", "/tmp/x"] {
            let error = ObjectStore::open(url).await.unwrap_err();
            assert!(matches!(error, ObjectStoreError::Url), "{url}: {error}");
        }
    }
}
