//! What a failure says.

use super::{only, suite};

#[test]
fn message_of_cocotbs_failure_is_read_from_its_own_attributes() {
    let detail = |attributes: &str| {
        let case = only(suite(&format!("<testcase name='a'><failure {attributes}/></testcase>")));
        let detail = &case.details[0];
        (detail.type_name.clone(), detail.message.clone())
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        detail("error_type='AssertionError' error_msg='got 9'"),
        (text("AssertionError"), text("got 9"))
    );
    assert_eq!(detail("msg='no init'"), (None, text("no init")));
    // Another tool's, in either order.
    for attributes in ["message='a' msg='b' type='T'", "type='T' msg='b' message='a'"] {
        assert_eq!(detail(attributes), (text("T"), text("a")), "{attributes}");
    }
}

#[test]
fn message_is_what_failed_where_a_tool_puts_something_else_first() {
    let message = |name: &str, attributes: &str, text: &str| {
        let case = only(suite(&format!(
            "<testcase name='{name}'><failure {attributes}><![CDATA[{text}]]></failure></testcase>"
        )));
        case.message().map(str::to_owned)
    };
    for (name, attributes, text, expected) in [
        // Pest 3, and PHPUnit 10 with data.
        ("it adds", "type='E'", "Tests\\A::it adds\nFailed: 1\n\nat a.php:3", "Failed: 1"),
        ("testA with data set #0", "", "A::testA with data set #0 with data (1)\nno\n", "no"),
        // Another test's name, and a text that goes on behind the name.
        ("adds", "", "adds2\nno", "adds2\nno"),
        ("adds", "", "adds: 1 isn't 2\nat a.js", "adds: 1 isn't 2\nat a.js"),
        ("adds", "", "adds", "adds"),
        ("adds", "message='m'", "adds\nno", "m"),
        (
            "adds",
            "message='1 failure, see stacktrace for details'",
            "Failure:\nExpected: 3\n  Actual: 2\n\nStacktrace:\na.dart 3",
            "Expected: 3\n  Actual: 2",
        ),
        (
            "adds",
            "type='Cancelling due to failed test step' message='Cancelling due to failed test step'",
            "<h3><b>Add Failed</b></h3><pre>[Status] it is 500 &lt; 600\n</pre><hr/>",
            "Add Failed\n[Status] it is 500 < 600",
        ),
        ("adds", "type='E' message='E'", "at a.js:1", "E"),
        // AssertJ and Hamcrest, with Surefire and with Gradle.
        (
            "adds",
            "type='a.E' message='&#10;expected: 1&#10; but: 2'",
            "a.E: ",
            "expected: 1\n but: 2",
        ),
        (
            "adds",
            "type='a.E' message='a.E: &#xa;expected: 1&#xa; but: 2'",
            "",
            "expected: 1\n but: 2",
        ),
        (
            "adds",
            "type='a.E'",
            "a.E: \n\nexpected: 1\n but: 2\n\tat a.B(B.java:5)",
            "expected: 1\n but: 2",
        ),
        ("adds", "type='a.E'", "a.E: \n\tat a.B(B.java:5)", "a.E: \n\tat a.B(B.java:5)"),
        ("adds", "type='a.E'", "a.E: no\n\tat a.B(B.java:5)", "a.E: no\n\tat a.B(B.java:5)"),
        // A place alone.
        ("adds", "message='FAILED: res://a.gd:12' type='FAILURE'", "1 is 2", "1 is 2"),
        ("adds", "message='a.cc:12'", "1 is 2\n\nmore", "1 is 2"),
        ("adds", "message='a.cc:12: no'", "1 is 2", "a.cc:12: no"),
        ("adds", "message='status:404'", "GET /", "status:404"),
        // GUT, of a test to do.
        ("adds", "message='pending'", "later", "later"),
        // A hook of Jest.
        ("adds", "", r#"{"message":"","stack":"Error: a\nb\n    at c.js"}"#, "Error: a\nb"),
        ("adds", "", r#"{"message":"no","stack":"Error: no\n    at c.js","type":"E"}"#, "no"),
        ("adds", "", r#"{"message":"cut"#, r#"{"message":"cut"#),
        // A type alone, as nextest writes it.
        ("adds", "type='test timeout'", "", "test timeout"),
        (
            "adds",
            "message='*HTML* a &lt;b&gt;c&lt;/b&gt;&lt;br&gt;1 &lt; 2 &amp;amp; &lt;3 &lt;a'",
            "",
            "a c\n1 < 2 & <3 <a",
        ),
    ] {
        assert_eq!(message(name, attributes, text).as_deref(), Some(expected), "{text}");
    }
}
