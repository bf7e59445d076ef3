//! Operators: the login, what they see, and the buttons.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::Response;
use tokio_util::sync::CancellationToken;

use super::support::World;
use crate::http::serve::BoundListeners;

const TOKEN: (&str, &str) = ("CRCR_ADMIN_TOKEN", "let me in; please");

async fn get(world: &World, path: &str, cookie: &str) -> (StatusCode, String) {
    let request = Request::get(path).header("cookie", cookie).body(Body::empty()).unwrap();
    text(world.answer(request).await).await
}

async fn text(answer: Response) -> (StatusCode, String) {
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Sends a form as a browser at `https://relay.example` does.
async fn send(world: &World, path: &str, origin: &str, cookie: &str, form: &str) -> Response {
    let request = Request::post(path)
        .header("host", "relay.example")
        .header("origin", origin)
        .header("cookie", cookie)
        .header("content-type", "application/x-www-form-urlencoded");
    world.answer(request.body(Body::from(form.to_owned())).unwrap()).await
}

const HERE: &str = "https://relay.example";
const RIGHT: &str = "token=let+me+in%3B+please";

/// Logs in and returns the cookie, as a browser sends it back.
async fn log_in(world: &World) -> String {
    let answer = send(world, "/crcr/login", HERE, "", RIGHT).await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    assert_eq!(answer.headers()[header::LOCATION], "/crcr/deliveries");
    let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
    assert!(!cookie.contains("let"), "the cookie holds no token: {cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn login_is_valid_for_twelve_hours() {
    let world = World::with(&[TOKEN]).await;
    assert_eq!(get(&world, "/crcr/deliveries", "").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&world, "/crcr/login", "").await.0, StatusCode::OK);
    let cookie = log_in(&world).await;
    for path in ["/crcr/deliveries", "/api/v1/deliveries", "/metrics"] {
        assert_eq!(get(&world, path, &format!("a=b; {cookie}")).await.0, StatusCode::OK, "{path}");
    }
    assert_eq!(get(&world, "/crcr/login", &cookie).await.0, StatusCode::SEE_OTHER);
    let out = send(&world, "/crcr/logout", HERE, &cookie, "").await;
    assert!(out.headers()[header::SET_COOKIE].to_str().unwrap().contains("crcr_admin=; "));
    world.later(Duration::from_secs(12 * 3600));
    assert_eq!(get(&world, "/crcr/deliveries", &cookie).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_operators_see_and_what_is_an_error_is_stored_by_no_cache() {
    let world = World::with(&[TOKEN]).await;
    let cookie = log_in(&world).await;
    let ask = async |method: Method, path: &str, accept: &str| {
        let request = Request::builder().method(method).uri(path).header("cookie", &cookie);
        world.answer(request.header("accept", accept).body(Body::empty()).unwrap()).await
    };
    for path in ["/crcr/deliveries", "/api/v1/deliveries", "/metrics", "/no/such/page", "/pr/abc"] {
        for accept in ["text/html", "application/json"] {
            let answer = ask(Method::GET, path, accept).await;
            assert_eq!(answer.headers()[header::CACHE_CONTROL], "no-store", "{path} as {accept}");
        }
    }
    let page = ask(Method::GET, "/no/such/page", "text/html").await;
    let head = ask(Method::HEAD, "/no/such/page", "text/html").await;
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        assert_eq!(head.headers().get(&name), page.headers().get(&name), "{name}");
    }
    assert_eq!(text(head).await, (StatusCode::NOT_FOUND, String::new()));
    let (_, page) = text(page).await;
    assert!(page.contains("there is no page at this address"), "{page}");
}

#[tokio::test]
async fn unknown_address_leads_to_the_search_for_what_it_ends_with() {
    let world = World::with(&[TOKEN]).await;
    for (path, link) in [
        ("/pull/7", "<a href=\"/search?q=7\"><bdi>Search for 7</bdi>"),
        ("/commits/1a2b3c4", "<a href=\"/search?q=1a2b3c4\">"),
        ("/x/%3Cb%3E%20%26", "<a href=\"/search?q=%3Cb%3E+%26\"><bdi>Search for &lt;b&gt; &amp;<"),
    ] {
        let request = Request::builder().uri(path).header("accept", "text/html");
        let answer = world.answer(request.body(Body::empty()).unwrap()).await;
        let (status, page) = text(answer).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(page.contains(link) && !page.contains("Is it one"), "{path}: {page}");
    }
}

#[tokio::test]
async fn wrong_login_sets_no_cookie_and_many_are_429() {
    let world = World::with(&[TOKEN]).await;
    let other = send(&world, "/crcr/login", "https://evil.example", "", RIGHT).await;
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    for form in ["", "token=", "token=let+me+in", "nothing=1"] {
        let answer = send(&world, "/crcr/login", HERE, "", form).await;
        assert!(answer.status().is_client_error(), "{form}");
        assert!(answer.headers().get(header::SET_COOKIE).is_none(), "{form}");
        let (_, page) = text(answer).await;
        assert!(page.contains("role=\"alert\"") && !page.contains("let me in"), "{page}");
    }
    for _ in 0..10 {
        send(&world, "/crcr/login", HERE, "", "token=guess").await;
    }
    let answer = send(&world, "/crcr/login", HERE, "", RIGHT).await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(answer.headers().contains_key(header::RETRY_AFTER));
    world.later(Duration::from_secs(60));
    log_in(&world).await;
    let huge = format!("token={}", "x".repeat(5000));
    let answer = send(&world, "/crcr/login", HERE, "", &huge).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn login_is_404_without_an_admin_token() {
    let world = World::new().await;
    assert_eq!(get(&world, "/crcr/login", "").await.0, StatusCode::NOT_FOUND);
    let answer = send(&world, "/crcr/login", HERE, "", "token=").await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn button_redelivers_a_dead_dispatch() {
    let world = World::with(&[TOKEN]).await;
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work_giving_up("acme/two").await;
    let cookie = log_in(&world).await;
    let (_, page) = get(&world, "/crcr/deliveries", &cookie).await;
    assert!(page.contains("Redeliver") && page.contains("1 dead"), "{page}");
    let sent = world.dispatched();
    assert_eq!(sent.len(), 3);

    let form = format!("delivery={}", delivery.id);
    let other = send(&world, "/crcr/deliveries", "https://evil.example", &cookie, &form).await;
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    let stranger = send(&world, "/crcr/deliveries", HERE, "", &form).await;
    assert_eq!(stranger.status(), StatusCode::NOT_FOUND);
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());

    let answer = send(&world, "/crcr/deliveries", HERE, &cookie, &form).await;
    assert_eq!(answer.headers()[header::LOCATION], "/crcr/deliveries?done=1");
    world.work().await;
    assert_eq!(world.dispatched().len(), 1);
    let (_, page) = get(&world, "/crcr/deliveries?done=1", &cookie).await;
    assert!(page.contains("1 back in the queue") && !page.contains("Redeliver</button>"), "{page}");
    let answer = send(&world, "/crcr/deliveries", HERE, &cookie, &form).await;
    assert_eq!(answer.headers()[header::LOCATION], "/crcr/deliveries?done=0");
}

#[tokio::test]
async fn dns_rebinding_on_admin_listener_is_403() {
    let world = World::with(&[TOKEN]).await;
    let bound = BoundListeners::new("127.0.0.1:0", Some("127.0.0.1:0")).await.unwrap();
    let address = bound.admin_address().unwrap();
    let stop = CancellationToken::new();
    let served = tokio::spawn(bound.serve(Arc::clone(&world.relay), stop.clone()));
    let ask = async |method: Method, path: &str, host: &str, bearer: &str| {
        let request = world.relay.http.request(method, format!("http://{address}{path}"));
        let request = request.header("host", host).header("authorization", bearer);
        // Its origin is its own, by the name that it has.
        let request = request.header("origin", format!("http://{host}"));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let answer = request.body("all=true").send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    let evil = format!("evil.example:{}", address.port());
    for path in ["/crcr/deliveries", "/api/v1/deliveries", "/metrics"] {
        let (status, text) = ask(Method::GET, path, &evil, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {text}");
        assert!(text.contains(&evil) && text.contains("http://localhost"), "{text}");
        for own in [&*format!("localhost:{}", address.port()), &*address.to_string()] {
            assert_eq!(ask(Method::GET, path, own, "").await.0, StatusCode::OK, "{path}");
        }
        // A proxy with another host name has to send the token.
        let bearer = format!("Bearer {}", TOKEN.1);
        assert_eq!(ask(Method::GET, path, &evil, &bearer).await.0, StatusCode::OK, "{path}");
    }
    for path in ["/crcr/deliveries", "/api/v1/deliveries"] {
        let (status, text) = ask(Method::POST, path, &evil, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {text}");
    }
    assert_eq!(ask(Method::GET, "/healthz", &evil, "").await.0, StatusCode::OK);
    stop.cancel();
    served.await.unwrap();
}

#[tokio::test]
async fn guessed_bearer_tokens_are_429_and_login_still_works() {
    let world = World::with(&[TOKEN]).await;
    let cookie = log_in(&world).await;
    let bearer = async |token: &str| {
        let request = Request::get("/metrics").header("authorization", format!("Bearer {token}"));
        world.answer(request.body(Body::empty()).unwrap()).await
    };
    for n in 0..10 {
        assert_eq!(bearer(&format!("guess {n}")).await.status(), StatusCode::NOT_FOUND);
    }
    let right = bearer(TOKEN.1).await;
    assert_eq!(right.status(), StatusCode::TOO_MANY_REQUESTS, "no guess is looked at any more");
    assert!(right.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(get(&world, "/metrics", &cookie).await.0, StatusCode::OK);
    log_in(&world).await;
    world.later(Duration::from_secs(60));
    assert_eq!(bearer(TOKEN.1).await.status(), StatusCode::OK);
}

/// Asks the operators' listener on the network.
async fn ask_network(world: &World, path: &str, bearer: &str) -> Response {
    let router = crate::http::router::admin(&world.relay, &world.hud, false);
    let request = Request::get(path).header("authorization", bearer).header("host", "relay");
    let request = request.body(Body::empty()).unwrap();
    tower::ServiceExt::oneshot(router, request).await.unwrap()
}

/// Prometheus asks there, and an answer of 429 would be an alert.
#[tokio::test]
async fn guesses_on_the_public_listener_lock_nobody_out_of_the_operators_one() {
    let world = World::with(&[TOKEN]).await;
    for _ in 0..11 {
        let guess = Request::get("/metrics").header("authorization", "Bearer guess");
        world.answer(guess.body(Body::empty()).unwrap()).await;
        send(&world, "/crcr/login", HERE, "", "token=guess").await;
    }
    let right = format!("Bearer {}", TOKEN.1);
    let public = Request::get("/metrics").header("authorization", &right);
    let public = world.answer(public.body(Body::empty()).unwrap()).await;
    assert_eq!(public.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask_network(&world, "/metrics", &right).await.status(), StatusCode::OK);
    for _ in 0..10 {
        let guess = ask_network(&world, "/metrics", "Bearer guess").await;
        assert_eq!(guess.status(), StatusCode::UNAUTHORIZED);
    }
    let late = ask_network(&world, "/metrics", &right).await;
    assert_eq!(late.status(), StatusCode::TOO_MANY_REQUESTS, "it has a limit of its own");
}

#[tokio::test]
async fn admin_listener_on_the_network_needs_the_token_if_configured() {
    let world = World::with(&[TOKEN]).await;
    let right = format!("Bearer {}", TOKEN.1);
    for path in ["/metrics", "/crcr/deliveries", "/api/v1/deliveries"] {
        let refused = ask_network(&world, path, "").await;
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(refused.headers()[header::WWW_AUTHENTICATE], "Bearer");
        assert_eq!(ask_network(&world, path, &right).await.status(), StatusCode::OK, "{path}");
    }
    assert_eq!(ask_network(&world, "/crcr/login", "").await.status(), StatusCode::OK);
    let world = World::new().await;
    assert_eq!(ask_network(&world, "/metrics", "").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn button_discards_a_dead_task() {
    let world = World::with(&[TOKEN]).await;
    world.send(&world.pull_request("opened")).await;
    world.work_giving_up("acme/two").await;
    let cookie = log_in(&world).await;
    let (_, page) = get(&world, "/crcr/deliveries", &cookie).await;
    assert!(page.contains("name=\"discard\""), "{page}");
    let key = crate::admin::deliveries::dead_letters(world.relay.store.as_ref(), 9).await.unwrap()
        [0]
    .key
    .clone();
    let form = format!(
        "discard={}",
        percent_encoding::utf8_percent_encode(&key, percent_encoding::NON_ALPHANUMERIC)
    );
    let other = send(&world, "/crcr/deliveries", "https://evil.example", &cookie, &form).await;
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    let answer = send(&world, "/crcr/deliveries", HERE, &cookie, &form).await;
    assert_eq!(answer.headers()[header::LOCATION], "/crcr/deliveries?discarded=1");
    let (_, page) = get(&world, "/crcr/deliveries?discarded=1", &cookie).await;
    assert!(page.contains("1 discarded.") && page.contains("Nothing was given up."), "{page}");
}
