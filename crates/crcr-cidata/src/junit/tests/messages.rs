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
