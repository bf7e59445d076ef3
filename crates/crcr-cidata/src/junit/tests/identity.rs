//! Which test a result is of.

use crcr_domain::ci_data::test_run::{TestCase, TestResult};

use super::{attempts, only, read, results, suite};

#[test]
fn repeated_name_in_a_suite_is_another_test_so_no_pass_or_skip_hides_its_failure() {
    use TestResult::{Error, Failure, Skipped, Success};
    for (later, result) in [("", Success), ("<skipped/>", Skipped), ("<error/>", Error)] {
        let report = read(suite(&format!(
            "<testcase name='a'><failure/></testcase><testcase name='a'>{later}</testcase>"
        )));
        assert_eq!(attempts(&report), [(Failure, 1, false), (result, 1, false)]);
    }
}

#[test]
fn tests_of_one_name_in_two_suites_are_two_tests_whatever_tells_them_apart() {
    use TestResult::{Failure, Success};
    let cases =
        ["<testcase name='a' time='1'><failure/></testcase>", "<testcase name='a' time='1'/>"];
    for (first, second, variants) in [
        ("package='a'", "package='b'", [Some("a"), Some("b")]),
        ("file='a.js'", "file='b.js'", [Some("a.js"), Some("b.js")]),
        // The next run has other machines.
        ("hostname='fv-az1234'", "hostname='fv-az5678'", [None, None]),
        ("hostname='runnervmf2e7y'", "hostname='runnervmwhb2q'", [None, None]),
        ("hostname='builder'", "hostname='worker'", [None, None]),
        ("id='0'", "id='1'", [None, None]),
        ("", "", [None, None]),
    ] {
        let report = read(format!(
            "<testsuites><testsuite name='s' {first}>{}</testsuite>\
             <testsuite name='s' {second}>{}</testsuite></testsuites>",
            cases[0], cases[1]
        ));
        assert_eq!(attempts(&report), [(Failure, 1, false), (Success, 1, false)], "{first}");
        let found: Vec<_> = report.cases.iter().map(|case| case.variant.as_deref()).collect();
        assert_eq!(found, variants, "{first}");
    }
}

#[test]
fn suite_of_a_java_test_is_not_the_nested_class_that_surefire_ended_with() {
    let suite = |suite: &str, class: &str| {
        let case = only(format!(
            "<testsuite xsi:noNamespaceSchemaLocation='surefire-test-report-3.0.xsd' name='{suite}'>\
             <testcase name='a' classname='{class}' time='1'/></testsuite>"
        ));
        case.suite.to_string()
    };
    assert_eq!(suite("demo.T$Last", "demo.T"), "demo.T");
    assert_eq!(suite("demo.T$Last", "demo.T$First"), "demo.T$First");
    assert_eq!(suite("demo.T$Last", "demo.T$Last"), "demo.T$Last");
    assert_eq!(suite("demo.T", "demo.T$First"), "demo.T", "as other versions write it");
    assert_eq!(suite("demo.T$Last", "demo.T2"), "demo.T$Last");
}

#[test]
fn hostname_is_a_project_where_the_root_is_playwrights_and_no_machine_anywhere() {
    let variant = |root: &str, host: &str| {
        let report = read(format!(
            "<testsuites {root}><testsuite name='s' hostname='{host}'><testcase name='a' time='1'/>\
             </testsuite></testsuites>"
        ));
        report.cases[0].variant.clone()
    };
    assert_eq!(variant("id='' name=''", "chromium").as_deref(), Some("chromium"));
    assert_eq!(variant("id='' name=''", "runnervmf2e7y"), None);
    assert_eq!(variant("name=''", "builder"), None);
    for project in ["desktop-1920x1080", "v1.2", "Desktop 1280x720"] {
        assert_eq!(variant("id='' name=''", project).as_deref(), Some(project));
    }
    // With a name of its own, as by `PLAYWRIGHT_JUNIT_SUITE_NAME`, another tool may have written it.
    assert_eq!(variant("id='' name='e2e'", "ci-worker-1234"), None);
    assert_eq!(variant("id='' name='e2e'", "iPad 1024x768").as_deref(), Some("iPad 1024x768"));
    // Playwright's suites have no package.
    let other = read(
        "<testsuites id='1' name='e2e'><testsuite name='s' package='p' hostname='builder'>\
         <testcase name='a' time='1'/></testsuite></testsuites>",
    );
    assert_eq!(other.cases[0].variant, None);
}

#[test]
fn browser_or_device_in_the_properties_of_a_suite_or_a_test_is_its_variant() {
    let report = read(
        "<testsuite name='s'><properties><property name='browserName' value='safari'/>\
         <property name='device' value='iPhone 17'/><property name='build' value='77'/></properties>\
         <testcase name='a' time='1'/>\
         <testcase name='b' time='1'><properties><property name='browser' value='edge'/></properties>\
         </testcase></testsuite>",
    );
    let found: Vec<_> = report.cases.iter().map(|case| case.variant.as_deref()).collect();
    assert_eq!(found, [Some("safari, iPhone 17"), Some("safari, iPhone 17, edge")]);
}

#[test]
fn test_is_the_same_one_after_an_update_of_karmas_browser() {
    let of_browser = |version: &str| {
        let class = format!("Chrome_Headless_{}_(Linux_0_0_0)", version.replace('.', "_"));
        read(format!(
            "<testsuite name='Chrome Headless {version} (Linux 0.0.0)' id='0' hostname='vm' tests='1' errors='0' \
             failures='1'><properties><property name='browser.fullName' value='Mozilla/5.0 …'/></properties>\
             <testcase name='sum adds' time='0' classname='{class}.sum'><failure/></testcase></testsuite>"
        ))
    };
    let before = of_browser("155.0.1.2").cases.remove(0);
    assert_eq!(before.full_name(), "sum.sum adds");
    assert_eq!(before.variant.as_deref(), Some("Chrome Headless Linux"));
    assert_eq!(before, of_browser("156.0.0.0").cases.remove(0));
}

#[test]
fn test_is_the_same_one_after_an_update_of_webdriverios_browser() {
    let of_browser = |browser: &str| {
        let report = read(format!(
            "<testsuite name='Login page'><properties><property name='specId' value='0'/>\
             <property name='capabilities' value='{browser}'/></properties>\
             <testcase classname='{browser}.Login_page' name='logs in' time='0'><failure/></testcase>\
             </testsuite>"
        ));
        report.cases.into_iter().next().unwrap()
    };
    let before = of_browser("chrome.119_0_6045_105.linux");
    assert_eq!(before.full_name(), "Login_page.logs in");
    assert_eq!(before.variant.as_deref(), Some("chrome linux"));
    assert_eq!(before, of_browser("chrome.120_0_1_2.linux"));
}

#[test]
fn testcafes_browsers_and_marks_are_no_part_of_names_and_a_failure_counts_once() {
    let of_run = |version: &str, time: &str| {
        read(format!(
            "<testsuite name='TestCafe Tests: Chrome {version} / Windows 10, Firefox 118.0 / Linux 0.0' tests='3' \
             failures='1' errors='1'>\
             <testcase classname='Shop' name='buys (unstable) (screenshots: /w/{time}/test-1)' time='1'/>\
             <testcase classname='Shop' name='looks (screenshots: /w/{time}/test-2)' time='1'><failure/></testcase>\
             <testcase classname='Shop' name='pays' time='1'/></testsuite>"
        ))
    };
    let report = of_run("119.0.0.0", "2026-11-25_10-11-12");
    use TestResult::{Failure, Success};
    assert_eq!(results(&report), [("buys", Success), ("looks", Failure), ("pays", Success)]);
    let flaky: Vec<_> = report.cases.iter().map(|case| case.flaky).collect();
    assert_eq!(flaky, [true, false, false]);
    assert_eq!(&*report.cases[0].suite, "TestCafe Tests");
    assert_eq!(report.cases[0].variant.as_deref(), Some("Chrome / Windows, Firefox / Linux"));
    assert_eq!(report.cases, of_run("120.0.0.0", "2026-11-26_01-02-03").cases);
}

#[test]
fn test_is_the_same_one_after_an_update_of_testems_browser() {
    let of_browser = |version: &str| {
        let report = read(format!(
            "<testsuite name='Testem Tests' tests='1' skipped='0' failures='1' time='1'>\
             <testcase classname='Chrome {version}' name='Acceptance: logs in' time='1'><failure/></testcase>\
             </testsuite>"
        ));
        report.cases.into_iter().next().unwrap()
    };
    let before = of_browser("131.0");
    assert_eq!(before.full_name(), "Testem Tests.Acceptance: logs in");
    assert_eq!(before.variant.as_deref(), Some("Chrome"));
    assert_eq!(before, of_browser("132.0"));
}

#[test]
fn variant_has_no_builds_of_browsers_kernels_and_disks() {
    let variant = |name: &str, value: &str| {
        let report = read(format!(
            "<testsuite name='s'><properties><property name='{name}' value='{value}'/></properties>\
             <testcase name='a' time='1'/></testsuite>"
        ));
        report.cases[0].variant.as_deref().unwrap_or_default().to_owned()
    };
    let windows = r"Microsoft Windows Server 2025|C:\Windows|\Device\Harddisk0\Partition4";
    for (name, value, stable) in [
        ("platform", windows, "Microsoft Windows Server 2025"),
        ("platform", "Linux-6.8.0-1017-azure-x86_64", "Linux"),
        ("browser", "Chrome/131.0.6778.85", "Chrome"),
        ("browserName", "chrome 131.0.6778.85 (headless)", "chrome (headless)"),
        ("os", "10.0.20348", ""),
        // Chosen ones.
        ("os", "Windows 11", "Windows 11"),
        ("device", "iPhone 17, iOS 26.1", "iPhone 17, iOS 26.1"),
        ("device", "Dev", "Dev"),
    ] {
        assert_eq!(variant(name, value), stable, "{value}");
    }
}

#[test]
fn device_of_maestros_suite_is_the_variant_of_its_tests() {
    let suite = |device: &str| {
        format!(
            "<testsuite name='Test Suite' device='{device}'><testcase name='a' time='1'/></testsuite>"
        )
    };
    let report =
        read(format!("<testsuites>{}{}</testsuites>", suite("iPhone 16"), suite("iPhone 17")));
    let found: Vec<_> = report.cases.iter().map(|case| case.variant.as_deref()).collect();
    assert_eq!(found, [Some("iPhone 16"), Some("iPhone 17")]);
}

#[test]
fn test_of_node_has_the_suites_around_it_as_its_class() {
    let report = read(
        "<testsuites><testsuite name='add'><testsuite name='errors'><testcase name='throws' classname='test' time='1'/>\
         </testsuite></testsuite><testsuite name='sub'><testsuite name='errors'><testcase name='throws' \
         classname='test' time='1'><failure/></testcase></testsuite></testsuite>\
         <testcase name='throws' classname='test' time='1'/></testsuites>",
    );
    let names: Vec<_> = report.cases.iter().map(TestCase::full_name).collect();
    assert_eq!(names, ["add > errors.throws", "sub > errors.throws", "throws"]);
    // pytest's module `test.py`.
    let pytest = "<testsuites><testsuite name='pytest'><testcase name='a' classname='test' time='1'/></testsuite></testsuites>";
    assert_eq!(only(pytest).full_name(), "test.a");
}

#[test]
fn class_is_read_where_a_tool_has_no_classname() {
    let class = |attributes: &str| {
        only(suite(&format!("<testcase name='a' {attributes}/>"))).classname.to_string()
    };
    assert_eq!(class("class='Unit\\ACest' file='/w/ACest.php'"), "Unit\\ACest");
    assert_eq!(class("class='App\\ATest' classname='App.ATest'"), "App.ATest");
}

#[test]
fn names_that_look_like_numbers_stay_as_they_are() {
    for name in ["1e5", "007", "nan", "1,000", " a "] {
        assert_eq!(only(suite(&format!("<testcase name='{name}'/>"))).name, name);
    }
}

#[test]
fn file_of_the_suite_is_the_file_of_its_tests() {
    let report = read(
        "<testsuites><testsuite name='s' file='a.js'><testcase name='x'/>\
         <testcase name='y' file='b.js'/></testsuite>\
         <testsuite name='t' filepath='c.js'><testcase name='z'/></testsuite></testsuites>",
    );
    let files: Vec<_> = report.cases.iter().map(|case| case.file.as_deref().unwrap()).collect();
    assert_eq!(files, ["a.js", "b.js", "c.js"]);
}

#[test]
fn file_of_a_test_has_no_test_and_no_line_in_it() {
    for (place, file) in [
        ("tests/Unit/AddTest.php::it adds", "tests/Unit/AddTest.php"),
        ("test/add_test.exs:7", "test/add_test.exs"),
        (r"C:\app\add_test.py:7", r"C:\app\add_test.py"),
        ("tests/add.py", "tests/add.py"),
        ("acme::tests", "acme::tests"),
    ] {
        let case = only(suite(&format!("<testcase name='a' file='{place}'/>")));
        assert_eq!(case.file.as_deref(), Some(file));
    }
}

#[test]
fn test_of_cargo2junit_is_the_same_one_after_a_new_crate_before_its_own() {
    let suite = |number: u32, class: &str| {
        format!(
            "<testsuite id='{number}' name='cargo test #{number}' package='testsuite/cargo test #{number}' tests='1' \
             hostname='localhost'><testcase name='adds' classname='{class}' time='0'/></testsuite>"
        )
    };
    let before = only(suite(0, "math::tests"));
    assert_eq!((&*before.suite, before.variant.as_deref()), ("cargo test", None));
    let after =
        read(format!("<testsuites>{}{}</testsuites>", suite(0, "new"), suite(1, "math::tests")));
    assert_eq!(after.cases[1], before);
    // Whatever another tool counts is a name.
    let other = only("<testsuite name='issue #7'><testcase name='a' time='0'/></testsuite>");
    assert_eq!(&*other.suite, "issue #7");
}

#[test]
fn rspec_suite_of_any_process_of_parallel_tests_is_one_suite() {
    let of = |name: &str| {
        only(format!(
            "<testsuite name='{name}'><testcase classname='spec.a_spec' name='a' time='1'/></testsuite>"
        ))
    };
    for name in ["rspec", "rspec2", "rspec16"] {
        assert_eq!(&*of(name).suite, "rspec");
    }
    assert_eq!(&*of("rspec-rails2").suite, "rspec-rails2");
}

#[test]
fn test_is_the_same_one_after_an_update_of_the_browser_that_kotlin_names() {
    let name = |name: &str| {
        only(format!(
            "<testsuite name='s'><testcase name='{name}' classname='c' time='1'/></testsuite>"
        ))
        .name
    };
    assert_eq!(
        name("adds[js, browser, ChromeHeadless143.0.0.0, Linux0.0.0]"),
        "adds[js, browser, ChromeHeadless, Linux]"
    );
    assert_eq!(
        name("adds[wasmJs, browser, Firefox140.0, Mac OS 10.15.7]"),
        "adds[wasmJs, browser, Firefox, Mac OS]"
    );
    for other in ["adds[js, node]", "adds[js, browser]", "adds[1.5, 2.5, 3.5]", "adds [x1.0]"] {
        assert_eq!(name(other), other);
    }
}
