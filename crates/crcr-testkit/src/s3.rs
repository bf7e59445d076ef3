//! A small S3 server that stores objects in a folder.
//!
//! `s3s` and `s3s-fs` do the protocol, signatures and files. Added here is what clients need and
//! those lack: anonymous readers, refusals by operation, 403 for a missing key when the caller may
//! not list, conditional reads, tags, the list of unfinished uploads, checksums and entity tags of
//! parts, the region. Keys can have about 150 bytes, because `s3s-fs` stores attributes in files
//! that are named after the key.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use crcr_standin::server::{Bound, Server};
use futures_util::{TryStreamExt as _, stream};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::checksum::ChecksumHasher;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, Checksum, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectTaggingInput, DeleteObjectTaggingOutput,
    DeleteObjectsInput, DeleteObjectsOutput, ETag, ETagCondition, GetBucketLocationInput,
    GetBucketLocationOutput, GetObjectInput, GetObjectOutput, GetObjectTaggingInput,
    GetObjectTaggingOutput, HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsInput, ListObjectsOutput,
    ListObjectsV2Input, ListObjectsV2Output, ListPartsInput, ListPartsOutput, MultipartUpload,
    Part, PutObjectInput, PutObjectOutput, PutObjectTaggingInput, PutObjectTaggingOutput,
    StreamingBlob, Tag, Timestamp, UploadPartInput, UploadPartOutput,
};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::sync::RwLock;
use url::Url;
use url::form_urlencoded::parse;

/// The access key of all servers.
pub const ACCESS_KEY: &str = "AKIAEXAMPLESTANDIN01";
pub const SECRET_KEY: &str = "stand-in/secret/key/of/no/account/0123456";

#[derive(Debug, Clone)]
pub struct Rules {
    /// What callers without credentials may do.
    pub anonymous: Anonymous,
    /// Whether callers with credentials may list. If not, a missing key is 403 for them.
    pub may_list: bool,
    /// Operations (`PutObject`, `PutObjectTagging`, …) that are refused with 403.
    pub denied: BTreeSet<&'static str>,
    /// Operations that answer 501, as on a server that doesn't have them.
    pub unknown: BTreeSet<&'static str>,
    /// Whether the conditions of a write are ignored, as by servers that don't have them.
    pub ignores_write_conditions: bool,
    /// The bucket's region. A request signed for another one is refused, with this one in the answer.
    pub region: String,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            anonymous: Anonymous::Nothing,
            may_list: true,
            denied: BTreeSet::new(),
            unknown: BTreeSet::new(),
            ignores_write_conditions: false,
            region: "us-east-1".to_owned(),
        }
    }
}

/// What callers without credentials may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anonymous {
    Nothing,
    /// Read objects; a missing one is 403.
    Read,
    /// Read objects and list the bucket.
    ReadAndList,
}

/// A running S3 server with one bucket. Dropping it stops the server and deletes the objects.
#[derive(Debug)]
pub struct S3Server {
    server: Server,
    shared: Arc<Shared>,
    folder: TempDir,
    bucket: String,
}

#[derive(Debug, Default)]
struct Shared(Mutex<BucketState>);

#[derive(Debug, Default)]
struct BucketState {
    rules: Rules,
    keys: BTreeMap<String, String>,
    tags: BTreeMap<String, BTreeMap<String, String>>,
    uploads: BTreeMap<String, Upload>,
    calls: Vec<(String, String)>,
}

#[derive(Debug)]
struct Upload {
    key: String,
    tags: BTreeMap<String, String>,
    initiated: Timestamp,
    parts: BTreeMap<i32, SentPart>,
}

#[derive(Debug, Clone)]
struct SentPart {
    tag: ETag,
    size: i64,
    checksum_crc64nvme: Option<String>,
    at: std::time::SystemTime,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BucketState> {
        self.0.lock()
    }
}

impl S3Server {
    /// Starts on a free loopback port with an empty `bucket` in `us-east-1`, and the keys
    /// [`ACCESS_KEY`] and [`SECRET_KEY`].
    pub fn start(bucket: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("s3-").tempdir()?;
        std::fs::create_dir(folder.path().join(bucket))?;
        let files =
            FileSystem::new(folder.path()).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let shared = Arc::new(Shared::default());
        shared.lock().keys.insert(ACCESS_KEY.to_owned(), SECRET_KEY.to_owned());

        let mut builder = S3ServiceBuilder::new(ObjectStore {
            files,
            shared: shared.clone(),
            whole: RwLock::default(),
        });
        builder.set_auth(AccessGuard { shared: shared.clone(), root: folder.path().to_owned() });
        builder.set_access(AccessGuard { shared: shared.clone(), root: folder.path().to_owned() });
        let service = builder.build();
        let known = shared.clone();
        let router = Router::new().fallback(async move |request: Request| {
            let bucket_alone = !request.uri().path().trim_matches('/').contains('/');
            let region = known.lock().rules.region.clone();
            let refusal = without_length(&request)
                .or_else(|| signed_for_another_region(request.headers(), &region));
            let mut response = match refusal {
                Some(refusal) => refusal,
                None => whole(service.clone(), request).await,
            };
            if (bucket_alone || !response.status().is_success())
                && let Ok(region) = HeaderValue::from_str(&region)
            {
                response.headers_mut().insert("x-amz-bucket-region", region);
            }
            response
        });
        let server = Bound::loopback()?.serve(router)?;
        Ok(Self { server, shared, folder, bucket: bucket.to_owned() })
    }

    /// The endpoint for clients, which have to use path style.
    pub fn url(&self) -> &Url {
        self.server.url()
    }

    /// Changes the rules for later requests.
    pub fn rules(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.shared.lock().rules);
    }

    /// Accepts another key. Session tokens aren't checked.
    pub fn add_key(&self, access_key: &str, secret_key: &str) {
        self.shared.lock().keys.insert(access_key.to_owned(), secret_key.to_owned());
    }

    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(key)).ok()
    }

    /// Overwrites the bytes of an object, but not its attributes.
    pub fn tamper(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        std::fs::write(self.path(key), bytes)
    }

    pub fn keys(&self) -> Vec<String> {
        let root = self.path("");
        let mut keys = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(key) = path.strip_prefix(&root).ok().and_then(|it| it.to_str()) {
                    keys.push(key.to_owned());
                }
            }
        }
        keys.sort();
        keys
    }

    /// The keys of multipart uploads that are neither completed nor aborted.
    pub fn unfinished(&self) -> Vec<String> {
        self.shared.lock().uploads.values().map(|upload| upload.key.clone()).collect()
    }

    pub fn tags(&self, key: &str) -> BTreeMap<String, String> {
        self.shared.lock().tags.get(key).cloned().unwrap_or_default()
    }

    /// All operations so far, including refused ones, with their keys (empty for the bucket).
    pub fn calls(&self) -> Vec<(String, String)> {
        self.shared.lock().calls.clone()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(&self.bucket).join(key)
    }
}

/// Finishes a request even when the caller disconnects. Otherwise `s3s-fs` would leave an object
/// without its attributes, which S3 never does.
async fn whole(service: S3Service, request: Request) -> Response {
    let call = async move { service.call(request.map(s3s::Body::http_body_unsync)).await };
    match tokio::spawn(call).await {
        Ok(Ok(response)) => response.into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:?}")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// S3's answer to a write without a `Content-Length`, also of nothing.
fn without_length(request: &Request) -> Option<Response> {
    if request.method() != Method::PUT || request.headers().contains_key("content-length") {
        return None;
    }
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>MissingContentLength</Code>\
                <Message>You must provide the Content-Length HTTP header.</Message></Error>";
    let kind = [("content-type", "application/xml")];
    Some((StatusCode::LENGTH_REQUIRED, kind, body).into_response())
}

/// S3's answer to a signature for a region that isn't the bucket's.
fn signed_for_another_region(headers: &HeaderMap, region: &str) -> Option<Response> {
    let credential = headers.get("authorization")?.to_str().ok()?.split("Credential=").nth(1)?;
    let signed = credential.split('/').nth(2)?;
    if signed == region {
        return None;
    }
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AuthorizationHeaderMalformed</Code>\
         <Message>The authorization header is malformed; the region '{signed}' is wrong; expecting \
         '{region}'</Message><Region>{region}</Region></Error>"
    );
    let kind = [("content-type", "application/xml")];
    Some((StatusCode::BAD_REQUEST, kind, body).into_response())
}

struct AccessGuard {
    shared: Arc<Shared>,
    root: PathBuf,
}

#[async_trait]
impl S3Auth for AccessGuard {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let secret = self.shared.lock().keys.get(access_key).cloned();
        secret.map(SecretKey::from).ok_or_else(|| s3_error!(InvalidAccessKeyId))
    }
}

#[async_trait]
impl S3Access for AccessGuard {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let operation = context.s3_op().name();
        let path = context.s3_path();
        let mut known = self.shared.lock();
        let key = path.get_object_key().unwrap_or_default().to_owned();
        known.calls.push((operation.to_owned(), key));
        let rules = &known.rules;
        if rules.unknown.contains(operation) {
            return Err(s3_error!(NotImplemented));
        }
        let reads = matches!(operation, "GetObject" | "HeadObject");
        let lists = matches!(operation, "ListObjects" | "ListObjectsV2" | "HeadBucket");
        let allowed = match (context.credentials(), rules.anonymous) {
            (Some(_), _) => rules.may_list || !lists,
            (None, Anonymous::Nothing) => false,
            (None, Anonymous::Read) => reads,
            (None, Anonymous::ReadAndList) => reads || lists,
        };
        if !allowed || rules.denied.contains(operation) {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
        match path.get_bucket_name() {
            Some(bucket) if !self.root.join(bucket).is_dir() => Err(s3_error!(NoSuchBucket)),
            _ => Ok(()),
        }
    }
}

/// `s3s-fs` with the missing features.
struct ObjectStore {
    files: FileSystem,
    shared: Arc<Shared>,
    /// Held while a condition is checked and the object written, and while an object is opened: `s3s-fs` would let two
    /// writers with one condition succeed, and could pair the bytes of one with the entity tag of the other.
    whole: RwLock<()>,
}

impl ObjectStore {
    /// The tags of a header; an error when the caller may not tag.
    fn allowed_tags(&self, header: Option<&str>) -> S3Result<BTreeMap<String, String>> {
        if header.is_some() && self.shared.lock().rules.denied.contains("PutObjectTagging") {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
        Ok(tags_of_header(header))
    }

    /// 404 becomes 403 for a caller who may not list.
    fn missing(&self, error: S3Error, signed: bool) -> S3Error {
        let known = self.shared.lock();
        let lists = match known.rules.anonymous {
            _ if signed => known.rules.may_list,
            anonymous => anonymous == Anonymous::ReadAndList,
        };
        if *error.code() == S3ErrorCode::NoSuchKey && !lists {
            return s3_error!(AccessDenied, "Access Denied");
        }
        error
    }
}

/// Checks the conditions of a read against the object's entity tag.
fn check_conditions(
    tag: Option<&ETag>,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    let holds = |condition: &ETagCondition| {
        condition.is_any()
            || condition.as_etag().zip(tag).is_some_and(|(wanted, tag)| wanted.weak_cmp(tag))
    };
    if if_match.is_some_and(|condition| !holds(condition)) {
        return Err(s3_error!(PreconditionFailed, "At least one of the pre-conditions failed"));
    }
    if if_none_match.is_some_and(holds) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

/// The tags in the header `x-amz-tagging`, such as `a=1&b=2`.
fn tags_of_header(header: Option<&str>) -> BTreeMap<String, String> {
    parse(header.unwrap_or_default().as_bytes()).into_owned().collect()
}

/// The digests of a part in its headers or trailers, in a fixed order of algorithms.
fn part_digests(input: &UploadPartInput, trailers: &HeaderMap) -> [Option<String>; 5] {
    let trailer = |name| trailers.get(name).and_then(|it: &HeaderValue| it.to_str().ok());
    [
        (&input.checksum_crc32, "x-amz-checksum-crc32"),
        (&input.checksum_crc32c, "x-amz-checksum-crc32c"),
        (&input.checksum_crc64nvme, "x-amz-checksum-crc64nvme"),
        (&input.checksum_sha1, "x-amz-checksum-sha1"),
        (&input.checksum_sha256, "x-amz-checksum-sha256"),
    ]
    .map(|(header, name)| header.clone().or_else(|| trailer(name).map(str::to_owned)))
}

fn hasher_of_all() -> ChecksumHasher {
    ChecksumHasher {
        crc32: Some(Default::default()),
        crc32c: Some(Default::default()),
        sha1: Some(Default::default()),
        sha256: Some(Default::default()),
        crc64nvme: Some(Default::default()),
    }
}

#[async_trait]
impl S3 for ObjectStore {
    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.files.head_bucket(request).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.files.get_bucket_location(request).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.files.list_objects(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.files.list_objects_v2(request).await
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let signed = request.credentials.is_some();
        let (wanted, unwanted) =
            (request.input.if_match.clone(), request.input.if_none_match.clone());
        let _whole = self.whole.read().await;
        let answer = self.files.get_object(request).await.map_err(|e| self.missing(e, signed))?;
        check_conditions(answer.output.e_tag.as_ref(), wanted.as_ref(), unwanted.as_ref())?;
        Ok(answer)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let signed = request.credentials.is_some();
        let (wanted, unwanted) =
            (request.input.if_match.clone(), request.input.if_none_match.clone());
        let _whole = self.whole.read().await;
        let answer = self.files.head_object(request).await.map_err(|e| self.missing(e, signed))?;
        check_conditions(answer.output.e_tag.as_ref(), wanted.as_ref(), unwanted.as_ref())?;
        Ok(answer)
    }

    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        if self.shared.lock().rules.ignores_write_conditions {
            request.input.if_none_match = None;
            request.input.if_match = None;
        }
        let key = request.input.key.clone();
        let tags = self.allowed_tags(request.input.tagging.as_deref())?;
        if let Some(body) = request.input.body.take() {
            // A client that stalls mustn't keep the others waiting.
            let pieces: Vec<Bytes> =
                body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
            let pieces = pieces.into_iter().map(Ok::<_, io::Error>);
            request.input.body = Some(StreamingBlob::wrap(stream::iter(pieces)));
        }
        let _whole = self.whole.write().await;
        let answer = self.files.put_object(request).await?;
        self.shared.lock().tags.insert(key, tags);
        Ok(answer)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let key = request.input.key.clone();
        let _whole = self.whole.write().await;
        let answer = match self.files.delete_object(request).await {
            // Deleting a missing object succeeds.
            Err(error) if *error.code() == S3ErrorCode::NoSuchKey => {
                S3Response::new(DeleteObjectOutput::default())
            }
            answer => answer?,
        };
        self.shared.lock().tags.remove(&key);
        Ok(answer)
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let answer = self.files.delete_objects(request).await?;
        let mut known = self.shared.lock();
        for deleted in answer.output.deleted.iter().flatten() {
            known.tags.remove(deleted.key.as_deref().unwrap_or_default());
        }
        drop(known);
        Ok(answer)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let upload = Upload {
            key: request.input.key.clone(),
            tags: self.allowed_tags(request.input.tagging.as_deref())?,
            initiated: Timestamp::from(std::time::SystemTime::now()),
            parts: BTreeMap::new(),
        };
        let algorithm = request.input.checksum_algorithm.clone();
        let mut answer = self.files.create_multipart_upload(request).await?;
        answer.output.checksum_algorithm = algorithm;
        if let Some(id) = answer.output.upload_id.clone() {
            self.shared.lock().uploads.insert(id, upload);
        }
        Ok(answer)
    }

    async fn upload_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let (id, number) = (request.input.upload_id.clone(), request.input.part_number);
        if !self.shared.lock().uploads.contains_key(&id) {
            return Err(s3_error!(NoSuchUpload));
        }
        let hasher = Arc::new(Mutex::new(hasher_of_all()));
        let size = Arc::new(AtomicI64::new(0));
        let (update, count) = (hasher.clone(), size.clone());
        if let Some(body) = request.input.body.take() {
            let body = body.map_err(io::Error::other).inspect_ok(move |chunk| {
                count.fetch_add(chunk.len() as i64, Ordering::Relaxed);
                update.lock().update(chunk);
            });
            request.input.body = Some(StreamingBlob::wrap(body));
        }
        let trailers = request.trailing_headers.take();
        let told_in_headers = part_digests(&request.input, &HeaderMap::new());
        let mut answer = self.files.upload_part(request).await.map_err(|error| {
            // It was aborted meanwhile; `s3s-fs` has several names for that.
            let is_there = self.shared.lock().uploads.contains_key(&id);
            if is_there { error } else { s3_error!(NoSuchUpload) }
        })?;
        let trailers = trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
        let told = told_in_headers
            .into_iter()
            .zip(part_digests(&UploadPartInput::default(), &trailers))
            .map(|(header, trailer)| header.or(trailer));
        let hasher = std::mem::take(&mut *hasher.lock());
        let Checksum {
            checksum_crc32,
            checksum_crc32c,
            checksum_crc64nvme,
            checksum_sha1,
            checksum_sha256,
            ..
        } = hasher.finalize();
        let output = &mut answer.output;
        let fields = [
            (&mut output.checksum_crc32, checksum_crc32),
            (&mut output.checksum_crc32c, checksum_crc32c),
            (&mut output.checksum_crc64nvme, checksum_crc64nvme),
            (&mut output.checksum_sha1, checksum_sha1),
            (&mut output.checksum_sha256, checksum_sha256),
        ];
        for ((field, real), told) in fields.into_iter().zip(told) {
            if told.is_some() && told != real {
                return Err(s3_error!(BadDigest, "the part's checksum isn't the one it came with"));
            }
            *field = told;
        }
        let mut known = self.shared.lock();
        if let (Some(upload), Some(tag)) = (known.uploads.get_mut(&id), output.e_tag.clone()) {
            let size = size.load(Ordering::Relaxed);
            let checksum_crc64nvme = output.checksum_crc64nvme.clone();
            let at = std::time::SystemTime::now();
            upload.parts.insert(number, SentPart { tag, size, checksum_crc64nvme, at });
        }
        drop(known);
        Ok(answer)
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let (id, after) = (request.input.upload_id.clone(), request.input.part_number_marker);
        let most = request.input.max_parts.unwrap_or(1000).clamp(1, 1000);
        let known = self.shared.lock();
        let upload = known.uploads.get(&id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        let after = after.unwrap_or(0);
        let shown = usize::try_from(most).unwrap_or(1000);
        let mut parts: Vec<Part> = upload
            .parts
            .range(after + 1..)
            .map(|(number, part)| Part {
                part_number: Some(*number),
                e_tag: Some(part.tag.clone()),
                size: Some(part.size),
                checksum_crc64nvme: part.checksum_crc64nvme.clone(),
                last_modified: Some(Timestamp::from(part.at)),
                ..Default::default()
            })
            .collect();
        let is_truncated = parts.len() > shown;
        parts.truncate(shown);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(request.input.bucket),
            key: Some(request.input.key),
            upload_id: Some(id),
            is_truncated: Some(is_truncated),
            next_part_number_marker: parts.last().and_then(|part| part.part_number),
            max_parts: Some(most),
            parts: Some(parts),
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        mut request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        if self.shared.lock().rules.ignores_write_conditions {
            request.input.if_none_match = None;
            request.input.if_match = None;
        }
        let (id, key) = (request.input.upload_id.clone(), request.input.key.clone());
        let _whole = self.whole.write().await;
        {
            let known = self.shared.lock();
            let upload = known.uploads.get(&id).ok_or_else(|| s3_error!(NoSuchUpload))?;
            let listed = request.input.multipart_upload.iter().flat_map(|it| &it.parts).flatten();
            for part in listed {
                let stored = part.part_number.and_then(|number| upload.parts.get(&number));
                if stored.is_none() || part.e_tag.as_ref() != stored.map(|it| &it.tag) {
                    return Err(s3_error!(InvalidPart));
                }
            }
        }
        let answer = self.files.complete_multipart_upload(request).await?;
        let mut known = self.shared.lock();
        if let Some(upload) = known.uploads.remove(&id) {
            known.tags.insert(key, upload.tags);
        }
        drop(known);
        Ok(answer)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let _whole = self.whole.write().await;
        let upload = self.shared.lock().uploads.remove(&request.input.upload_id);
        upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        self.files.abort_multipart_upload(request).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = (
            input.key_marker.clone().unwrap_or_default(),
            input.upload_id_marker.clone().unwrap_or_default(),
        );
        let known = self.shared.lock();
        let mut found: Vec<(String, String, Timestamp)> = known
            .uploads
            .iter()
            .filter(|(_, upload)| upload.key.starts_with(&prefix))
            .map(|(id, upload)| (upload.key.clone(), id.clone(), upload.initiated.clone()))
            .filter(|(key, id, _)| (key, id) > (&after.0, &after.1))
            .collect();
        found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        let most = input.max_uploads.unwrap_or(1000).clamp(1, 1000);
        let shown = usize::try_from(most).unwrap_or(1000);
        let is_truncated = found.len() > shown;
        found.truncate(shown);
        let last = found.last().filter(|_| is_truncated).cloned();
        let uploads = found.into_iter().map(|(key, id, initiated)| MultipartUpload {
            key: Some(key),
            upload_id: Some(id),
            initiated: Some(initiated),
            ..Default::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix,
            is_truncated: Some(is_truncated),
            max_uploads: Some(most),
            next_key_marker: last.as_ref().map(|last| last.0.clone()),
            next_upload_id_marker: last.map(|last| last.1),
            uploads: Some(uploads.collect()),
            ..Default::default()
        }))
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let tags = request.input.tagging.tag_set.into_iter();
        let tags = tags.filter_map(|tag| Some((tag.key?, tag.value?))).collect();
        self.shared.lock().tags.insert(request.input.key, tags);
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let tags = self.shared.lock().tags.get(&request.input.key).cloned();
        let tags = tags.ok_or_else(|| s3_error!(NoSuchKey))?.into_iter();
        let tag_set = tags.map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect();
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set, ..Default::default() }))
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.shared.lock().tags.insert(request.input.key, BTreeMap::new());
        Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
    }
}

#[cfg(test)]
mod tests;
