//! `/crcr/login`: the form for the admin token.

use crcr_hud::View;
use maud::{Markup, html};

use crate::admin::LOGIN;

/// `refused` is why the last try failed.
pub(crate) fn page(github_url: &str, refused: Option<&str>) -> Markup {
    let public_url = None;
    let view = View { github_url, public_url, path: LOGIN, is_operator: false, has_login: true };
    view.shell(
        "Log in",
        false,
        &html! {
            h1 { "Operators" }
            @if let Some(why) = refused { p.note.bad role="alert" { (why) "." } }
            form.login method="post" action=(LOGIN) {
                // Password managers need a user name.
                input type="text" name="username" autocomplete="username" value="operator" hidden;
                label for="token" { "Admin token" }
                input #token name="token" type="password" required autocomplete="current-password" autofocus;
                button { "Log in" }
            }
            p.detail { "The relay's setting " code { "CRCR_ADMIN_TOKEN" } ". A login lasts for twelve hours." }
        },
    )
}
