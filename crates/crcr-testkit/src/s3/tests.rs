//! The AWS SDK against the server.

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Region};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};

use super::*;

const BUCKET: &str = "artifacts";

fn client(server: &S3Server, secret: Option<&str>, region: &str) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(server.url().as_str())
        .region(Region::new(region.to_owned()))
        .force_path_style(true)
        .retry_config(aws_sdk_s3::config::retry::RetryConfig::disabled());
    let config = match secret {
        Some(secret) => {
            let session = Some("session-token".to_owned());
            config.credentials_provider(Credentials::new(ACCESS_KEY, secret, session, None, "test"))
        }
        None => config.allow_no_auth(),
    };
    Client::from_conf(config.build())
}

fn signed(server: &S3Server) -> Client {
    client(server, Some(SECRET_KEY), "us-east-1")
}

fn refusal<T: std::fmt::Debug, E: ProvideErrorMetadata + std::fmt::Debug>(
    result: Result<T, SdkError<E>>,
) -> (u16, String) {
    let error = result.unwrap_err();
    let status = error.raw_response().unwrap().status().as_u16();
    (status, error.code().unwrap_or_default().to_owned())
}

async fn put(client: &Client, key: &str, bytes: &'static [u8]) {
    let request = client.put_object().bucket(BUCKET).key(key);
    request.body(ByteStream::from_static(bytes)).send().await.unwrap();
}

#[tokio::test]
async fn object_keeps_its_bytes_attributes_and_tags() {
    let server = S3Server::start(BUCKET).unwrap();
    let client = signed(&server);
    let request = client.put_object().bucket(BUCKET).key("acme/upstream/1/logs/a b.txt");
    let request = request.body(ByteStream::from_static(b"hello")).content_type("text/plain");
    let request = request.metadata("sha256", "abc").tagging("retention-days=7");
    request.send().await.unwrap();
    assert_eq!(server.keys(), ["acme/upstream/1/logs/a b.txt"]);
    assert_eq!(server.object("acme/upstream/1/logs/a b.txt").unwrap(), b"hello");
    assert_eq!(server.tags("acme/upstream/1/logs/a b.txt")["retention-days"], "7");
    let get = client.get_object().bucket(BUCKET).key("acme/upstream/1/logs/a b.txt");
    let read = get.clone().range("bytes=1-2").send().await.unwrap();
    assert_eq!(read.metadata.unwrap()["sha256"], "abc");
    assert_eq!(read.content_type.unwrap(), "text/plain");
    assert_eq!(read.body.collect().await.unwrap().to_vec(), b"el");
    let tag = read.e_tag.unwrap();
    get.clone().if_match(&tag).send().await.unwrap();
    let other = get.if_match("\"00000000000000000000000000000000\"").send().await;
    assert_eq!(refusal(other), (412, "PreconditionFailed".to_owned()));
}

#[tokio::test]
async fn conditional_writes_are_honoured() {
    let server = S3Server::start(BUCKET).unwrap();
    let client = signed(&server);
    let put = || {
        let request = client.put_object().bucket(BUCKET).key("a");
        request.body(ByteStream::from_static(b"1"))
    };
    let tag = put().if_none_match("*").send().await.unwrap().e_tag.unwrap();
    let failed = (412, "PreconditionFailed".to_owned());
    assert_eq!(refusal(put().if_none_match("*").send().await), failed);
    put().if_match(&tag).send().await.unwrap();
    let wrong = put().if_match("\"00000000000000000000000000000000\"").send().await;
    assert_eq!(refusal(wrong), failed);
}

#[tokio::test]
async fn multipart_upload_is_listed_until_it_ends() {
    let server = S3Server::start(BUCKET).unwrap();
    let client = signed(&server);
    let create = client.create_multipart_upload().bucket(BUCKET).key("big");
    let create = create.metadata("sha256", "abc").tagging("retention-days=7");
    let create = create.checksum_algorithm(aws_sdk_s3::types::ChecksumAlgorithm::Crc64Nvme);
    let id = create.send().await.unwrap().upload_id.unwrap();
    let part = |number: i32, bytes: Vec<u8>| {
        let request = client.upload_part().bucket(BUCKET).key("big").upload_id(&id);
        let request = request.checksum_algorithm(aws_sdk_s3::types::ChecksumAlgorithm::Crc64Nvme);
        request.part_number(number).body(bytes.into()).send()
    };
    let second = part(2, b"end".to_vec()).await.unwrap();
    let first = part(1, vec![7; 5 << 20]).await.unwrap();
    assert!(first.checksum_crc64_nvme.is_some());
    assert_eq!(server.unfinished(), ["big"]);
    let listed = client.list_multipart_uploads().bucket(BUCKET).prefix("b").send().await;
    assert_eq!(listed.unwrap().uploads()[0].upload_id().unwrap(), id);
    let none = client.list_multipart_uploads().bucket(BUCKET).prefix("c").send().await;
    assert!(none.unwrap().uploads().is_empty());
    let parts = client.list_parts().bucket(BUCKET).key("big").upload_id(&id);
    let parts = parts.send().await.unwrap();
    assert_eq!(parts.parts()[0].e_tag(), first.e_tag());
    assert_eq!(parts.parts()[1].size(), Some(3));

    let complete = |tags: [Option<String>; 2]| {
        let parts = tags.into_iter().zip(1..).map(|(tag, number)| {
            CompletedPart::builder().set_e_tag(tag).part_number(number).build()
        });
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts.collect()));
        let request = client.complete_multipart_upload().bucket(BUCKET).key("big");
        request.upload_id(&id).multipart_upload(parts.build()).if_none_match("*").send()
    };
    let swapped = complete([second.e_tag.clone(), first.e_tag.clone()]).await;
    assert_eq!(refusal(swapped), (400, "InvalidPart".to_owned()));
    complete([first.e_tag, second.e_tag]).await.unwrap();
    assert!(server.unfinished().is_empty());
    assert_eq!(server.tags("big")["retention-days"], "7");
    let head = client.head_object().bucket(BUCKET).key("big").send().await.unwrap();
    assert_eq!(head.metadata().unwrap()["sha256"], "abc");
    assert_eq!(server.object("big").unwrap().len(), (5 << 20) + 3);
    let gone = client.abort_multipart_upload().bucket(BUCKET).key("big").upload_id(&id);
    assert_eq!(refusal(gone.send().await), (404, "NoSuchUpload".to_owned()));
}

#[tokio::test]
async fn aborted_upload_leaves_nothing() {
    let server = S3Server::start(BUCKET).unwrap();
    let client = signed(&server);
    let create = client.create_multipart_upload().bucket(BUCKET).key("big");
    let id = create.send().await.unwrap().upload_id.unwrap();
    let part = client.upload_part().bucket(BUCKET).key("big").upload_id(&id).part_number(1);
    part.body(ByteStream::from_static(b"x")).send().await.unwrap();
    let abort = client.abort_multipart_upload().bucket(BUCKET).key("big").upload_id(&id);
    abort.send().await.unwrap();
    assert!(server.unfinished().is_empty() && server.keys().is_empty());
    let names = std::fs::read_dir(server.folder.path()).unwrap();
    let left: Vec<_> = names.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, [BUCKET], "only the bucket is in the folder");
}

#[tokio::test]
async fn anonymous_reads_and_lists_are_denied_until_the_rules_allow_them() {
    let server = S3Server::start(BUCKET).unwrap();
    put(&signed(&server), "public", b"hello").await;
    let anonymous = client(&server, None, "us-east-1");
    let get = |key: &str| anonymous.get_object().bucket(BUCKET).key(key).send();
    let denied = (403, "AccessDenied".to_owned());
    assert_eq!(refusal(get("public").await), denied);
    server.rules(|rules| rules.anonymous = Anonymous::Read);
    get("public").await.unwrap();
    assert_eq!(refusal(get("missing").await), denied, "who may not list sees 403");
    assert_eq!(refusal(anonymous.list_objects_v2().bucket(BUCKET).send().await), denied);
    server.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    assert_eq!(refusal(get("missing").await), (404, "NoSuchKey".to_owned()));
    let listed = anonymous.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(listed.contents()[0].key(), Some("public"));
    let write = anonymous.put_object().bucket(BUCKET).key("x").send().await;
    assert_eq!(refusal(write), denied);
}

#[tokio::test]
async fn refusals_have_the_status_and_code_of_s3() {
    let server = S3Server::start(BUCKET).unwrap();
    let good = signed(&server);
    let missing = good.get_object().bucket(BUCKET).key("missing").send().await;
    assert_eq!(refusal(missing), (404, "NoSuchKey".to_owned()));
    let bucket = good.put_object().bucket("nobodys").key("a").send().await;
    assert_eq!(refusal(bucket), (404, "NoSuchBucket".to_owned()));
    let bad = client(&server, Some("wrong"), "us-east-1");
    let bad = bad.put_object().bucket(BUCKET).key("a").send().await;
    assert_eq!(refusal(bad), (403, "SignatureDoesNotMatch".to_owned()));

    server.rules(|rules| {
        rules.denied.insert("PutObjectTagging");
        rules.unknown.insert("GetObjectTagging");
        rules.may_list = false;
    });
    put(&good, "a", b"1").await;
    let missing = good.head_object().bucket(BUCKET).key("missing").send().await;
    assert_eq!(refusal(missing).0, 403);
    let tags = aws_sdk_s3::types::Tagging::builder().set_tag_set(Some(Vec::new())).build();
    let tag = good.put_object_tagging().bucket(BUCKET).key("a").tagging(tags.unwrap());
    assert_eq!(refusal(tag.send().await), (403, "AccessDenied".to_owned()));
    let tag = good.get_object_tagging().bucket(BUCKET).key("a").send().await;
    assert_eq!(refusal(tag), (501, "NotImplemented".to_owned()));
    assert!(server.calls().contains(&("PutObjectTagging".to_owned(), "a".to_owned())));
}

#[tokio::test]
async fn request_signed_for_another_region_is_refused_with_the_right_one() {
    let server = S3Server::start(BUCKET).unwrap();
    server.rules(|rules| rules.region = "eu-west-1".to_owned());
    let wrong = signed(&server).head_bucket().bucket(BUCKET).send().await.unwrap_err();
    let answer = wrong.raw_response().unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    assert_eq!(answer.headers().get("x-amz-bucket-region"), Some("eu-west-1"));
    let right = client(&server, Some(SECRET_KEY), "eu-west-1");
    let head = right.head_bucket().bucket(BUCKET).send().await.unwrap();
    assert_eq!(head.bucket_region(), Some("eu-west-1"));
    let put = signed(&server).put_object().bucket(BUCKET).key("a").send().await;
    assert_eq!(refusal(put), (400, "AuthorizationHeaderMalformed".to_owned()));
}

#[tokio::test]
async fn list_of_more_than_max_keys_goes_on_with_its_token() {
    let server = S3Server::start(BUCKET).unwrap();
    let client = signed(&server);
    for key in ["p/1", "p/2", "p/3", "q/1"] {
        put(&client, key, b"x").await;
    }
    let list = || client.list_objects_v2().bucket(BUCKET).prefix("p/").max_keys(2);
    let first = list().send().await.unwrap();
    assert_eq!((first.contents().len(), first.is_truncated()), (2, Some(true)));
    let next = first.next_continuation_token().unwrap();
    let rest = list().continuation_token(next).send().await.unwrap();
    assert_eq!(rest.contents()[0].key(), Some("p/3"));
    assert_eq!(rest.is_truncated(), Some(false));
}

#[tokio::test]
async fn upload_that_another_client_ends_meanwhile_is_missing_and_never_denied() {
    let server = S3Server::start(BUCKET).unwrap();
    let client = signed(&server);
    for _ in 0..60 {
        let id = client.create_multipart_upload().bucket(BUCKET).key("big").send().await.unwrap();
        let id = id.upload_id.unwrap();
        let part = |number| {
            let part = client.upload_part().bucket(BUCKET).key("big").upload_id(&id);
            part.part_number(number).body(ByteStream::from_static(b"x")).send()
        };
        let abort = || client.abort_multipart_upload().bucket(BUCKET).key("big").upload_id(&id);
        let (one, two, first, second) =
            tokio::join!(part(1), part(2), abort().send(), abort().send());
        for part in [one, two] {
            if part.is_err() {
                assert_eq!(refusal(part), (404, "NoSuchUpload".to_owned()));
            }
        }
        for abort in [first, second] {
            if abort.is_err() {
                assert_eq!(refusal(abort), (404, "NoSuchUpload".to_owned()));
            }
        }
    }
}
