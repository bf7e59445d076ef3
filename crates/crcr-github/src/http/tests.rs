//! Pauses and retries, and answers of something in between.

use super::*;

#[test]
fn pauses_grow_up_to_a_cap_and_honour_retry_after() {
    let retry = RetryPolicy::default();
    for tried in 1..40 {
        let pause = retry.pause(tried, None);
        assert!(pause >= Duration::from_millis(125) && pause <= Duration::from_secs(8));
    }
    assert!(retry.pause(4, None) >= Duration::from_secs(1));
    assert!(retry.pause(1, Some(Duration::from_secs(30))) >= Duration::from_secs(30));
}

#[test]
fn retry_after_is_a_number_of_seconds_or_a_date() {
    let seconds = |text: &str| pause_of(text).map(|pause| pause.as_secs());
    assert_eq!(seconds(" 7 "), Some(7));
    assert_eq!(seconds("18446744073709551615"), Some(3600));
    assert_eq!(seconds("Fri, 31 Dec 1999 23:59:59 GMT"), Some(0));
    assert_eq!(seconds("Thu, 31 Dec 2099 23:59:59 GMT"), Some(3600));
    let soon = Timestamp::now() + Duration::from_secs(100);
    let soon = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&soon).unwrap();
    assert!((90..=100).contains(&seconds(&soon).unwrap()), "{soon}");
    for wrong in ["", "soon", "-1", "1.5"] {
        assert_eq!(seconds(wrong), None, "{wrong}");
    }
}

#[tokio::test]
async fn retry_after_longer_than_the_task_gives_up_at_once() {
    let hour = Some(Duration::from_secs(3600));
    let started = Instant::now();
    assert!(!RetryPolicy::PATIENT.start().wait_to_retry(&"busy", hour).await);
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(RetryPolicy::PATIENT.pause(1, hour), Duration::from_secs(60));
    let waits = 5 * RetryPolicy::PATIENT.pause(1, Some(Duration::from_secs(300)));
    assert!(waits <= RetryPolicy::PATIENT.total, "the rest of the task has its time");
}

/// How long an outage may last until `policy` gives up, with a clock that tests move.
async fn longest_outage(policy: RetryPolicy, retry_after: Option<Duration>) -> Duration {
    let (started, mut tries) = (Instant::now(), policy.start());
    while tries.wait_to_retry(&"busy", retry_after).await {}
    assert!(tries.history().unwrap().contains("times in"), "{:?}", tries.history());
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn outage_of_a_minute_is_survived_by_a_call_and_of_five_minutes_by_the_last_resort() {
    let ten = Some(Duration::from_secs(10));
    for (policy, at_least, at_most) in [
        (RetryPolicy::CALL, 60, 75),
        (RetryPolicy::LAST_RESORT, 300, 330),
        (RetryPolicy::PATIENT, 580, 600),
        (RetryPolicy::CALL.within(Duration::from_secs(40)), 30, 40),
    ] {
        for retry_after in [None, ten] {
            let survived = longest_outage(policy, retry_after).await.as_secs();
            assert!((at_least..=at_most).contains(&survived), "{policy:?}: {survived}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn last_try_starts_when_the_time_ends_unless_the_server_asks_for_more() {
    for total in [1, 5, 20, 75].map(Duration::from_secs) {
        let survived = longest_outage(RetryPolicy::CALL.within(total), None).await;
        assert_eq!(survived.as_secs(), total.as_secs());
    }
    let policy = RetryPolicy::CALL.within(Duration::from_secs(25));
    let survived = longest_outage(policy, Some(Duration::from_secs(10))).await.as_secs();
    assert!((20..25).contains(&survived), "{survived}");
}

/// A server whose connection is as slow as a modem's, or takes nothing any more after some bytes.
fn slow_server(bytes: usize) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let (mut read, mut piece) = (0, vec![0; 512 * 1024]);
        while read < bytes {
            std::thread::sleep(Duration::from_millis(110));
            match connection.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(some) => read += some,
            }
        }
        let _ = connection.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n");
        std::thread::sleep(Duration::from_secs(60));
    });
    url
}

#[tokio::test]
async fn upload_may_take_any_time_while_bytes_flow_and_none_when_they_stop() {
    const SIZE: usize = 24 << 20;
    let silence = Duration::from_secs(4);
    let client = UploadClient::new(silence, SILENCE).unwrap();
    let body = Bytes::from(vec![7; SIZE]);
    let started = Instant::now();
    let sent = client.send(client.put(&slow_server(SIZE)), body.clone()).await.unwrap();
    assert_eq!(sent.status(), StatusCode::CREATED);
    assert!(started.elapsed() > silence, "the test sends too fast to show anything");

    let client = UploadClient::new(Duration::from_millis(300), SILENCE).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let error = client.send(client.put(&url), body).await.unwrap_err();
    assert!(error.is_timeout() && error.is_transient() && error.may_be_applied(), "{error}");
    let error = client.send(client.put(&url), Bytes::new()).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
}

#[tokio::test]
async fn store_that_takes_a_whole_block_and_then_says_nothing_is_given_up_after_the_patience() {
    const SIZE: usize = 8 << 20;
    let (silence, patience) = (Duration::from_millis(400), Duration::from_millis(700));
    let client = UploadClient::new(silence, patience).unwrap();
    let sent = client.send(client.put(&server_without_answer()), Bytes::from(vec![7; SIZE]));
    let error = tokio::time::timeout(SILENCE, sent).await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Silence(limit) if limit == patience), "{error:?}");
}

/// A server that takes all bytes and never answers.
fn server_without_answer() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let _ = std::io::copy(&mut connection, &mut std::io::sink());
    });
    url
}

#[tokio::test(start_paused = true)]
async fn error_after_an_outage_says_how_often_and_how_long_it_was_tried() {
    let busy = || HttpError::Status {
        status: StatusCode::SERVICE_UNAVAILABLE,
        retry_after: None,
        headers: Box::default(),
        body: Bytes::new(),
    };
    let error = with_retries(RetryPolicy::CALL, || async { Err::<(), _>(busy()) }).await;
    let error = error.unwrap_err();
    assert!(error.is_transient() && error.status() == Some(StatusCode::SERVICE_UNAVAILABLE));
    let text = error.to_string();
    assert!(text.contains("503") && text.contains("tried ") && text.ends_with(" s)"), "{text}");
    let refused = || HttpError::TooLarge(1);
    let error = with_retries(RetryPolicy::CALL, || async { Err::<(), _>(refused()) }).await;
    assert!(matches!(error, Err(HttpError::TooLarge(1))), "a refusal fails at once: {error:?}");
}

#[tokio::test(start_paused = true)]
async fn single_try_that_took_long_says_how_long_and_so_does_a_loop_around_it() {
    let silent = || async {
        tokio::time::sleep(SILENCE).await;
        Err::<(), _>(HttpError::Silence(SILENCE))
    };
    let mut tries = RetryPolicy::LAST_RESORT.start();
    let error = with_retries(RetryPolicy::ONCE, silent).await.unwrap_err();
    assert!(error.is_transient() && error.is_timeout(), "{error}");
    assert!(error.to_string().ends_with("(waited 60 s)"), "{error}");
    assert!(tries.wait_to_retry(&error, None).await);
    let text = error.after(&tries).to_string();
    assert!(text.contains("(tried 2 times in 6") && !text.contains("waited"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn outage_is_measured_from_when_the_server_was_last_there_for_another_task() {
    let second = Duration::from_secs(1);
    let mut tries = RetryPolicy::CALL.within(20 * second).start();
    tokio::time::sleep(60 * second).await;
    tries.server_was_alive(Instant::now().checked_sub(15 * second).unwrap());
    assert!(tries.wait_to_retry(&"silent", None).await, "5 s are left");
    tokio::time::sleep(5 * second).await;
    assert!(!tries.wait_to_retry(&"silent", None).await);
    assert!(tries.history().unwrap().starts_with("tried 2 times in 6"), "{tries:?}");
}

#[tokio::test(start_paused = true)]
async fn long_outage_is_announced_once_a_minute_and_a_blip_isn_t() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    print_waiting(|line| LINES.lock().push(line.to_owned()));
    let own = || LINES.lock().iter().filter(|line| line.contains("own outage")).count();
    let mut tries = RetryPolicy::PATIENT.start();
    for _ in 0..2 {
        assert!(tries.wait_to_retry(&"own outage", None).await);
    }
    assert_eq!(own(), 0);
    tokio::time::sleep(NOTICE_INTERVAL).await;
    let mut parallel = RetryPolicy::PATIENT.start();
    for _ in 0..6 {
        tries.wait_to_retry(&"own outage", None).await;
        parallel.wait_to_retry(&"own outage", None).await;
    }
    // Other tests of this process share the printer, and may have used this minute up.
    assert!(own() <= 2, "{:?}", LINES.lock());
    assert!(LINES.lock().iter().any(|line| line.contains("trying again for up to")));
}

#[tokio::test]
async fn retries_end_by_count_or_time_unless_there_is_progress() {
    let base = Duration::from_millis(1);
    let quick = RetryPolicy { base, cap: base, tries: 5, ..RetryPolicy::CALL };
    let mut tries = quick.start();
    while tries.wait_to_retry(&"broken", None).await {}
    assert_eq!(tries.tried(), 5);
    for _ in 0..20 {
        tries.progressed();
        assert!(tries.wait_to_retry(&"broken", None).await);
    }
    let mut short = RetryPolicy { total: Duration::ZERO, ..quick }.start();
    assert!(!short.wait_to_retry(&"broken", None).await);
}

#[test]
fn answer_of_a_proxy_is_an_outage_and_the_servers_own_403_a_refusal() {
    let answer = |status: u16, kind: &'static str, body: &'static str| {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        let status = StatusCode::from_u16(status).unwrap();
        HttpError::refused(status, Box::new(headers), body.as_bytes().into())
    };
    let page = "<!DOCTYPE html><html><title>403 Forbidden</title><body>nginx";
    let text = "{\"msg\":\"Error from intermediary with HTTP status code 403\"}";
    for (kind, body) in [("text/html", "no"), ("text/plain", page), ("application/json", text)] {
        let error = answer(403, kind, body);
        assert!(error.is_transient() && error.status().is_none(), "{error}");
        assert!(error.to_string().starts_with("something in between answered 403"), "{error}");
    }
    assert!(answer(403, "text/html", page).to_string().ends_with("`403 Forbidden`"));
    for (status, kind, body) in [
        (403, "application/json", "{\"msg\":\"no\"}"),
        (403, "application/xml", "<Error/>"),
        (404, "text/html", page),
        (401, "text/html", page),
    ] {
        let error = answer(status, kind, body);
        assert!(!error.is_transient() && error.status().is_some(), "{error}");
    }
}

#[test]
fn excerpt_has_one_line_without_control_characters() {
    assert_eq!(excerpt(b"a\n::error::b"), "a ::error::b");
    assert_eq!(excerpt(b" \n"), "(no text)");
}
