//! Formats other than JUnit, by their schemas.

use crcr_domain::ci_data::test_run::TestResult::{Error, Failure, Skipped, Success, Unfinished};
use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestRowKind};

use super::{JunitRule, TestReport};

fn read(report: &str) -> TestReport {
    TestReport::read(report.as_bytes()).unwrap()
}

fn names(report: &TestReport) -> Vec<(&str, &str, &str, TestResult)> {
    let of = |case: &TestCase| case.result;
    report
        .cases
        .iter()
        .map(|case| (&*case.suite, &*case.classname, case.name.as_str(), of(case)))
        .collect()
}

fn suite_failures(report: &TestReport) -> usize {
    report.cases.iter().filter(|case| case.kind == TestRowKind::Suite).count()
}

const NUNIT: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<test-run id="0" testcasecount="6" result="Failed" total="6" passed="1" failed="2" warnings="1" inconclusive="1" skipped="1" duration="1.5">
 <command-line><![CDATA[nunit3-console My.Tests.dll]]></command-line>
 <test-suite type="Assembly" id="1" name="C:\build\My.Tests.dll" result="Failed" site="Child" total="6" failed="2">
  <environment os-platform="Unix"/>
  <failure><message><![CDATA[One or more child tests had errors]]></message></failure>
  <test-suite type="TestFixture" id="2" name="Calc" classname="My.Calc" result="Failed" site="Child" total="6" failed="2">
   <failure><message>One or more child tests had errors</message></failure>
   <test-case id="3" name="Passes" fullname="My.Calc.Passes" classname="My.Calc" result="Passed" duration="0.012"/>
   <test-case id="4" name="Fails" classname="My.Calc" result="Failed" duration="0.2">
    <failure><message><![CDATA[  Expected: 1 <But was: 2>]]></message><stack-trace><![CDATA[at My.Calc]]></stack-trace></failure>
    <assertions><assertion result="Failed"><message>inner</message></assertion></assertions>
   </test-case>
   <test-suite type="ParameterizedMethod" id="5" name="Add" result="Failed" site="Child" total="1" failed="1">
    <test-case id="6" name="Add(1,2)" classname="My.Calc" result="Failed" label="Error" duration="0"><failure><message>System.Exception : x</message></failure></test-case>
   </test-suite>
   <test-case id="7" name="Off" classname="My.Calc" result="Skipped" label="Ignored" duration="0"><reason><message>no GPU</message></reason></test-case>
   <test-case id="8" name="Open" classname="My.Calc" result="Inconclusive" duration="0"/>
   <test-case id="9" name="Warns" classname="My.Calc" result="Warning" duration="0"/>
  </test-suite>
 </test-suite>
</test-run>"#;

#[test]
fn nunit_3_report_is_read() {
    let report = read(NUNIT);
    let of = |name, result| ("My.Tests.dll", "My.Calc", name, result);
    assert_eq!(
        names(&report),
        [
            of("Passes", Success),
            of("Fails", Failure),
            of("Add(1,2)", Error),
            of("Off", Skipped),
            of("Open", Skipped),
            of("Warns", Success),
        ]
    );
    assert_eq!(report.cases[0].time, Some(0.012));
    let failed = &report.cases[1];
    assert_eq!(failed.message(), Some("Expected: 1 <But was: 2>"));
    assert_eq!(failed.message_details(), Some("at My.Calc"));
    assert_eq!(report.cases[3].message(), Some("no GPU"));
    let rules: Vec<_> = report.summary.findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [JunitRule::Warning]);
}

#[test]
fn nunit_failure_outside_the_tests_is_a_row() {
    let suite = |site: &str, result: &str, cases: &str| {
        read(&format!(
            "<test-run result='Failed'><test-suite name='a.dll' result='Failed' site='Child'>\
             <test-suite name='F' result='Failed' site='{site}'><failure><message>boom</message></failure>\
             <test-case name='t' classname='F' result='{result}' duration='0'/>{cases}</test-suite>\
             </test-suite></test-run>"
        ))
    };
    // The tests ended before it failed.
    let torn = suite("TearDown", "Failed", "");
    assert_eq!((suite_failures(&torn), torn.cases[0].message()), (1, Some("boom")));
    assert_eq!(suite_failures(&suite("TearDown", "Passed", "")), 1);
    // Each of its tests failed because of it.
    assert_eq!(suite_failures(&suite("SetUp", "Failed", "")), 0);
    assert_eq!(suite_failures(&suite("SetUp", "Skipped", "")), 1);
    let run = read(
        "<test-run result='Failed' total='1' failed='1'><test-suite name='a' total='1'/></test-run>",
    );
    assert_eq!((run.tally.failures, suite_failures(&run)), (1, 1), "what it declares counts");
}

#[test]
fn nunit_assembly_that_can_not_be_loaded_is_told_by_its_reason() {
    let run = |result: &str| {
        read(&format!(
            "<test-run result='{result}' total='0' failed='0'><test-suite type='Assembly' name='a.dll' \
             runstate='NotRunnable' result='{result}' label='Invalid' total='0' failed='0'><reason><message>\
             <![CDATA[File not found]]></message></reason></test-suite></test-run>"
        ))
    };
    let failed = run("Failed");
    assert_eq!((failed.tally.tests, suite_failures(&failed)), (1, 1));
    assert_eq!(failed.cases[0].message(), Some("File not found"));
    assert_eq!(run("Skipped").tally.tests, 0);
}

#[test]
fn tests_of_an_nunit_fixture_with_arguments_have_them_in_their_class() {
    let report = read(
        "<test-run result='Failed'><test-suite type='Assembly' name='a.dll' result='Failed'>\
         <test-case name='T' fullname='A.F(1).T' classname='A.F' result='Failed' duration='0'/>\
         <test-case name='T(2.5)' fullname='A.F(2).T(2.5)' classname='A.F' result='Passed' duration='0'/>\
         <test-case name='T' fullname='A.G&lt;Int32&gt;.T' classname='A.G`1' result='Passed' duration='0'/>\
         <test-case name='T' fullname='A.H+I.T' classname='A.H+I' result='Passed' duration='0'/>\
         <test-case name='T' fullname='n.J.T' classname='J' result='Passed' duration='0'/>\
         <test-case name='a.py::t' fullname='a.py::t' classname='a.py' result='Passed' duration='0'/>\
         </test-suite></test-run>",
    );
    let classes: Vec<_> = report.cases.iter().map(|case| &*case.classname).collect();
    assert_eq!(classes, ["A.F(1)", "A.F(2)", "A.G<Int32>", "A.H+I", "J", "a.py"]);
}

/// Unity's test runner writes the label and the place of a result into it.
#[test]
fn nunit_result_with_a_label_is_read_as_without_it() {
    let run = |result: &str, test: &str| {
        read(&format!(
            "<test-run result='{result}'><test-suite name='P' result='Passed'><test-case name='t' \
             classname='C' result='{test}' duration='0'/></test-suite></test-run>"
        ))
    };
    assert_eq!(run("Failed(Child)", "Passed").tally.errors, 1, "the run says that it failed");
    assert_eq!(run("Failed(Child)", "Failed(Error)").tally.failures, 1);
    assert_eq!(run("Passed", "Skipped:Ignored").tally.skipped, 1);
    assert_eq!(run("Passed", "Inconclusive(Child)").tally.skipped, 1);
}

const XUNIT: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<assemblies timestamp="11/25/2026 01:00:00" schema-version="3">
 <assembly name="/home/user/My.Tests.dll" run-date="2026-11-25" total="4" passed="2" failed="1" skipped="1" time="0.3" errors="1">
  <errors><error type="test-class-cleanup" name="My.Calc"><failure exception-type="System.Exception"><message>no end</message><stack-trace>at X</stack-trace></failure></error></errors>
  <collection total="4" passed="2" failed="1" skipped="1" name="Test collection for My.Calc" time="0.3">
   <test name="My.Calc.Passes" type="My.Calc" method="Passes" time="0.01" result="Pass"><traits/></test>
   <test name="My.Calc.Add(a: 1, b: 2)" type="My.Calc" method="Add" time="0.02" result="Fail"><failure exception-type="Xunit.Sdk.EqualException"><message><![CDATA[Assert.Equal() Failure]]></message><stack-trace><![CDATA[at My.Calc.Add]]></stack-trace></failure></test>
   <test name="a shown name" type="My.Calc" method="Named" time="0" result="Pass"/>
   <test name="My.Calc.Off" type="My.Calc" method="Off" time="0" result="Skip"><reason><![CDATA[no GPU]]></reason></test>
  </collection>
 </assembly>
</assemblies>"#;

#[test]
fn xunit_net_report_is_read() {
    let report = read(XUNIT);
    let of = |name, result| ("My.Tests.dll", "My.Calc", name, result);
    assert_eq!(
        names(&report),
        [
            ("My.Tests.dll", "", "", Error),
            of("Passes", Success),
            of("Add(a: 1, b: 2)", Failure),
            of("a shown name", Success),
            of("Off", Skipped),
        ]
    );
    assert_eq!(report.cases[0].message(), Some("no end"));
    let failed = &report.cases[2];
    assert_eq!(failed.message(), Some("Assert.Equal() Failure"));
    assert_eq!(failed.details[0].type_name.as_deref(), Some("Xunit.Sdk.EqualException"));
    assert_eq!(report.cases[4].message(), Some("no GPU"));
    let crashed =
        read("<assemblies><assembly name='a.dll' total='2' failed='2' errors='0'/></assemblies>");
    assert_eq!(crashed.tally.failures, 2);
}

#[test]
fn tests_of_one_assembly_for_two_frameworks_of_xunit_net_are_told_apart() {
    let assembly = |framework: &str, result: &str| {
        format!(
            "<assembly name='/w/net{framework}/a.dll' target-framework='.NETCoreApp,Version=v{framework}'>\
             <collection name='c'><test name='A.t' type='A' method='t' time='0' result='{result}'/></collection></assembly>"
        )
    };
    let read = |assemblies: &[String]| {
        read(&format!("<assemblies>{}</assemblies>", assemblies.concat())).cases
    };
    let cases = read(&[assembly("8.0", "Fail"), assembly("9.0", "Pass")]);
    let found: Vec<_> = cases.iter().map(|case| (case.variant.as_deref(), case.result)).collect();
    assert_eq!(
        found,
        [(Some(".NETCoreApp,Version=v8.0"), Failure), (Some(".NETCoreApp,Version=v9.0"), Success),]
    );
    assert_eq!(read(&[assembly("8.0", "Pass")])[0].variant, None, "an upgrade changes no id");
}

#[test]
fn xunit_net_v1_report_with_the_root_of_later_ones_is_read() {
    let report = read(
        r#"<assemblies><assembly name="C:\b\My.Tests.dll" run-date="2026-11-25" total="3" passed="1" failed="1" skipped="1" time="0.3">
        <class time="0.3" name="My.Calc" total="3" passed="1" failed="1" skipped="1">
        <test name="My.Calc.Passes" type="My.Calc" method="Passes" result="Pass" time="0.01"/>
        <test name="My.Calc.Fails" type="My.Calc" method="Fails" result="Fail" time="0.02"><failure exception-type="E"><message>no</message><stack-trace>at</stack-trace></failure></test>
        <test name="My.Calc.Off" type="My.Calc" method="Off" result="Skip"><reason><message>no GPU</message></reason></test>
        </class></assembly></assemblies>"#,
    );
    let of = |name, result| ("My.Tests.dll", "My.Calc", name, result);
    assert_eq!(names(&report), [of("Passes", Success), of("Fails", Failure), of("Off", Skipped)]);
    let fixture = read(
        "<assemblies><assembly name='a.dll' total='0' failed='0'><class name='C' total='0'><failure>\
         <message>no device</message></failure></class></assembly></assemblies>",
    );
    assert_eq!((suite_failures(&fixture), fixture.cases[0].message()), (1, Some("no device")));
}

const TRX: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<TestRun id="1" name="user@HOST 2026-11-25 01:00:00" xmlns="http://microsoft.com/schemas/VisualStudio/TeamTest/2010">
 <Times creation="2026-11-25T01:00:00"/>
 <Results>
  <UnitTestResult executionId="e1" testId="t1" testName="My.Calc.Passes" computerName="HOST" duration="00:00:01.5000000" outcome="Passed"><Output><StdOut>hi</StdOut></Output></UnitTestResult>
  <UnitTestResult executionId="e2" testId="t2" testName="Fails" duration="1.00:00:00" outcome="Failed"><Output><ErrorInfo><Message>Assert failed &lt;a&gt;</Message><StackTrace>at My.Calc</StackTrace></ErrorInfo></Output></UnitTestResult>
  <UnitTestResult executionId="e3" testId="t3" testName="Off" outcome="NotExecuted"><Output><ErrorInfo><Message>no GPU</Message></ErrorInfo></Output></UnitTestResult>
  <UnitTestResult executionId="e4" testId="t4" testName="Rows" duration="00:00:00.1" outcome="Failed" resultType="DataDrivenTest">
   <InnerResults>
    <UnitTestResult testId="t4" testName="Rows (1)" duration="00:00:00" outcome="Passed" resultType="DataDrivenDataRow"/>
    <UnitTestResult testId="t4" testName="Rows (2)" duration="00:00:00" outcome="Timeout" resultType="DataDrivenDataRow"/>
   </InnerResults>
  </UnitTestResult>
  <UnitTestResult testId="t5" testName="Running" duration="00:00:00" outcome="InProgress"/>
 </Results>
 <TestDefinitions>
  <UnitTest name="Passes" storage="/home/user/my.tests.dll" id="t1"><TestMethod codeBase="/x.dll" className="My.Calc" name="Passes"/></UnitTest>
  <UnitTest name="Fails" storage="my.tests.dll" id="t2"><Execution id="e2"/><TestMethod className="My.Calc, My.Tests, Version=1.0" name="Fails"/></UnitTest>
  <UnitTest name="Rows" storage="my.tests.dll" id="t4"><TestMethod className="My.Data" name="Rows"/></UnitTest>
 </TestDefinitions>
 <ResultSummary outcome="Failed"><Counters total="5" executed="4" passed="1" failed="2" error="0" timeout="0" aborted="0"/></ResultSummary>
</TestRun>"#;

#[test]
fn trx_report_is_read_with_the_classes_from_its_end() {
    let report = read(TRX);
    assert_eq!(
        names(&report),
        [
            ("my.tests.dll", "My.Calc", "Passes", Success),
            ("my.tests.dll", "My.Calc", "Fails", Failure),
            ("", "", "Off", Skipped),
            ("my.tests.dll", "My.Data", "Rows (1)", Success),
            ("my.tests.dll", "My.Data", "Rows (2)", Error),
            ("", "", "Running", Unfinished),
        ]
    );
    let times: Vec<_> = report.cases.iter().map(|case| case.time).collect();
    assert_eq!(times[..3], [Some(1.5), Some(86_400.0), None]);
    assert_eq!(report.cases[1].message(), Some("Assert failed <a>"));
    assert_eq!(report.cases[1].message_details(), Some("at My.Calc"));
    assert_eq!(report.cases[2].message(), Some("no GPU"));
}

#[test]
fn trx_run_that_crashed_is_a_failure_beside_a_failed_test() {
    let run = |results: &str, summary: &str| {
        read(&format!(
            "<TestRun xmlns='http://microsoft.com/schemas/VisualStudio/TeamTest/2010'><Results>{results}\
             </Results><ResultSummary outcome='Failed'>{summary}</ResultSummary></TestRun>"
        ))
    };
    let crash = "<RunInfos><RunInfo outcome='Warning'><Text>slow</Text></RunInfo>\
                 <RunInfo outcome='Error'><Text>Test host process crashed</Text></RunInfo></RunInfos>";
    let failed = "<UnitTestResult testName='a' duration='00:00:00' outcome='Failed'/>";
    let report = run(failed, crash);
    assert_eq!((report.tally.failures, report.tally.errors), (1, 1));
    let of_suite = report.cases.iter().find(|case| case.kind == TestRowKind::Suite).unwrap();
    assert_eq!(of_suite.message(), Some("Test host process crashed"));
    let passed = failed.replace("Failed", "Passed");
    assert_eq!(run(&passed, crash).tally.errors, 1);
    assert_eq!(run(&passed, "").tally.errors, 1, "the run says that it failed");
    assert_eq!(run(&passed, "<Counters failed='0' aborted='2'/>").tally.errors, 2);
}

#[test]
fn trx_run_that_ended_early_is_a_failure_beside_a_failed_test() {
    let run = |outcome: &str, test: &str, summary: &str| {
        read(&format!(
            "<TestRun xmlns='http://microsoft.com/schemas/VisualStudio/TeamTest/2010'><Results><UnitTestResult \
             testName='a' duration='00:00:00' outcome='{test}'/></Results><ResultSummary outcome='{outcome}'>\
             {summary}</ResultSummary></TestRun>"
        ))
    };
    for outcome in
        ["Aborted", "Disconnected", "PassedButRunAborted", "InProgress", "Error", "Timeout"]
    {
        let report = run(outcome, "Failed", "");
        assert_eq!((report.tally.failures, suite_failures(&report)), (1, 1), "{outcome}");
        let told = "<RunInfos><RunInfo outcome='Error'><Text>crashed</Text></RunInfo></RunInfos>";
        assert_eq!(suite_failures(&run(outcome, "Failed", told)), 1, "{outcome}");
    }
    // A test explains it.
    assert_eq!(suite_failures(&run("Timeout", "Timeout", "")), 0);
    assert_eq!(suite_failures(&run("Aborted", "Timeout", "")), 1);
    let fewer = run("Completed", "Passed", "<Counters total='3' executed='1' passed='1'/>");
    assert_eq!(fewer.summary.findings[0].rule, JunitRule::TestCount);
}

#[test]
fn trx_run_that_only_says_again_that_a_test_failed_has_no_failure_beside_it() {
    let run = |outcome: &str, texts: &[&str]| {
        let infos: String = (texts.iter())
            .map(|text| format!("<RunInfo outcome='Error'><Text>{text}</Text></RunInfo>"))
            .collect();
        read(&format!(
            "<TestRun xmlns='http://microsoft.com/schemas/VisualStudio/TeamTest/2010'><Results><UnitTestResult \
             testName='a' duration='00:00:00' outcome='{outcome}'/></Results><ResultSummary outcome='Failed'>\
             <RunInfos>{infos}</RunInfos></ResultSummary></TestRun>"
        ))
    };
    let again = "[xUnit.net 00:00:00.74]     Acme.ATest.a [FAIL]";
    let code = "Exit code indicates failure: '2'. Please refer to https://aka.ms/testingplatform/exitcodes";
    let cleanup =
        "[xUnit.net 00:00:00.80]     [Test Class Cleanup Failure (Acme.ATest)] System.Exception";
    for text in [again, code] {
        let report = run("Failed", &[text, text]);
        assert_eq!((report.tally.failures, report.tally.errors), (1, 0), "{text}");
        // No test tells it.
        assert_eq!(run("Passed", &[text]).tally.errors, 1, "{text}");
    }
    assert_eq!(run("Failed", &[again, cleanup]).tally.errors, 1);
    assert_eq!(run("Failed", &[&code.replace('2', "7")]).tally.errors, 1);
}

#[test]
fn trx_outcome_that_is_not_written_or_not_known_is_never_a_skip() {
    let run = |outcomes: &[&str]| {
        let results: String = (outcomes.iter().enumerate())
            .map(|(at, outcome)| {
                format!("<UnitTestResult testName='{at}' duration='00:00:00' {outcome}/>")
            })
            .collect();
        read(&format!(
            "<TestRun xmlns='http://microsoft.com/schemas/VisualStudio/TeamTest/2010'><Results>{results}\
             </Results><ResultSummary outcome='Failed'><Counters error='1'/></ResultSummary></TestRun>"
        ))
    };
    let found = |report: &TestReport| -> Vec<_> { report.cases.iter().map(|c| c.result).collect() };
    let unwritten = run(&["", "outcome='Passed'"]);
    assert_eq!(found(&unwritten), [Error, Success]);
    assert!(unwritten.summary.findings.is_empty());
    let skips = run(&[
        "outcome='Error'",
        "outcome='NotExecuted'",
        "outcome='Inconclusive'",
        "outcome='NotRunnable'",
        // Mocha's reporter, for a test that is skipped.
        "outcome='Pending'",
    ]);
    assert_eq!(found(&skips), [Error, Skipped, Skipped, Skipped, Skipped]);
    let odd = run(&["outcome='failed'", "outcome='Exploded'"]);
    assert_eq!(found(&odd), [Failure, Error]);
    let rules: Vec<_> = odd.summary.findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [JunitRule::UnknownResult]);
}

#[test]
fn report_of_another_format_that_is_cut_keeps_its_complete_tests() {
    for (report, last) in [(NUNIT, "</test-run>"), (XUNIT, "</assemblies>"), (TRX, "</TestRun>")] {
        let whole = read(report).tally;
        let end = report.rfind(last).unwrap();
        for cut in 0..end {
            let Ok(part) = TestReport::read(&report.as_bytes()[..cut]) else { continue };
            assert!(part.summary.is_truncated, "{}", &report[..cut]);
            assert!(part.tally.successes <= whole.successes, "{}", &report[..cut]);
        }
    }
}

fn go(lines: &[&str]) -> TestReport {
    read(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

#[test]
fn failure_of_go_that_printed_nothing_itself_is_told_by_its_result() {
    let output = |test: &str, text: &str| {
        format!(r#"{{"Action":"output","Package":"p"{test},"Output":"{text}\n"}}"#)
    };
    let package = |printed: &[&str]| {
        let mut lines: Vec<String> = printed.iter().map(|text| output("", text)).collect();
        lines.push(r#"{"Action":"fail","Package":"p","Elapsed":0.01}"#.to_owned());
        let report = go(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        report.cases[0].message().map(str::to_owned)
    };
    assert_eq!(package(&["PASS", "FAIL\\tp\\t0.1s"]).as_deref(), Some("FAIL\tp\t0.1s"));
    let exit = package(&["PASS", "exit status 4", "FAIL\\tp\\t0.1s"]);
    assert_eq!(exit.as_deref(), Some("exit status 4"));
    let of_test = r#","Test":"TestA""#;
    let report = go(&[
        r#"{"Action":"run","Package":"p","Test":"TestA"}"#,
        &output(of_test, "=== RUN   TestA"),
        &output(of_test, "--- FAIL: TestA (0.01s)"),
        r#"{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.01}"#,
        r#"{"Action":"fail","Package":"p","Elapsed":0.02}"#,
    ]);
    assert_eq!(report.cases[0].message(), Some("--- FAIL: TestA (0.01s)"));
}

#[test]
fn lines_of_go_test_are_read() {
    let report = go(&[
        r#"{"Time":"2026-11-25T01:00:00Z","Action":"start","Package":"p"}"#,
        r#"{"Action":"run","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}"#,
        r#"{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: 1 isn't 2\n"}"#,
        r#"{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.01s)\n"}"#,
        r#"{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.01}"#,
        r#"{"Action":"run","Package":"p","Test":"TestB/x"}"#,
        r#"{"Action":"pass","Package":"p","Test":"TestB/x","Elapsed":0}"#,
        r#"{"Action":"run","Package":"p","Test":"TestC"}"#,
        r#"{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}"#,
        r#"{"Action":"fail","Package":"p","Elapsed":0.02}"#,
    ]);
    let of = |name, result| ("p", "p", name, result);
    assert_eq!(
        names(&report),
        [of("TestA", Failure), of("TestB/x", Success), of("TestC", Skipped)]
    );
    assert_eq!(report.cases[0].message(), Some("a_test.go:7: 1 isn't 2"));
    assert_eq!(report.cases[0].time, Some(0.01));
    assert!(!report.summary.is_truncated);
}

#[test]
fn lines_of_test2json_without_a_package_are_read() {
    let event = |action: &str, test: &str| format!(r#"{{"Action":"{action}","Test":"{test}"}}"#);
    let start = r#"{"Action":"start"}"#;
    let failed = r#"{"Action":"fail","Elapsed":0.01}"#;
    let passed = r#"{"Action":"pass","Elapsed":0.01}"#;
    let (run, fail, pass) = (event("run", "TestA"), event("fail", "TestA"), event("pass", "TestA"));
    let report = go(&[start, &run, &fail, failed]);
    assert_eq!(names(&report), [("", "", "TestA", Failure)]);
    assert!(!report.summary.is_truncated);
    let crashed = go(&[start, r#"{"Action":"output","Output":"panic: no device\n"}"#, failed]);
    assert_eq!(
        (suite_failures(&crashed), crashed.cases[0].message()),
        (1, Some("panic: no device"))
    );
    // Those of two programs in one file.
    let two = go(&[start, &run, &fail, failed, start, &run, &pass, passed]);
    assert_eq!((two.tally.tests, two.tally.failures, two.tally.flaky), (2, 1, 0));
}

#[test]
fn benchmark_and_unended_line_of_go_are_no_unfinished_tests() {
    let of = |output: &str, name: &str, action: &str| {
        let report = go(&[
            &format!(r#"{{"Action":"run","Package":"p","Test":"{name}"}}"#),
            &format!(
                r#"{{"Action":"output","Package":"p","Test":"{name}","Output":"{output}\n"}}"#
            ),
            &format!(r#"{{"Action":"{action}","Package":"p","Elapsed":0}}"#),
        ]);
        (report.cases[0].result, report.cases[0].time)
    };
    assert_eq!(of("BenchmarkA", "BenchmarkA", "pass").0, Success);
    assert_eq!(of("BenchmarkA-2 1 768.0 ns/op", "BenchmarkA", "fail").0, Success);
    assert_eq!(of("BenchmarkA", "BenchmarkA", "fail").0, Unfinished);
    assert_eq!(of("x--- PASS: TestA (0.25s)", "TestA", "fail"), (Success, Some(0.25)));
    assert_eq!(of("x--- FAIL: TestA (0.25s)", "TestA", "fail"), (Failure, Some(0.25)));
    assert_eq!(of("x--- SKIP: TestA (0.00s)", "TestA", "pass").0, Skipped);
    // The process ended before it, with any code.
    assert_eq!(of("x", "TestA", "pass").0, Unfinished);
}

#[test]
fn package_of_go_that_is_not_built_or_crashes_is_a_failed_suite() {
    let build = go(&[
        r#"{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:3: undefined: x\n"}"#,
        r#"{"ImportPath":"p [p.test]","Action":"build-fail"}"#,
        r#"{"Action":"start","Package":"p"}"#,
        r#"{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}"#,
        r#"{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}"#,
    ]);
    assert_eq!((build.tally.errors, suite_failures(&build)), (1, 1));
    assert_eq!(build.cases[0].message(), Some("./a.go:3: undefined: x"));
    // All that `go test -c -json` writes.
    let builds_only = go(&[
        r#"{"ImportPath":"p","Action":"build-output","Output":"./p.go:3: undefined: x\n"}"#,
        r#"{"ImportPath":"p","Action":"build-fail"}"#,
        r#"{"ImportPath":"p [p.test]","Action":"build-fail"}"#,
    ]);
    assert_eq!((builds_only.tally.errors, suite_failures(&builds_only)), (1, 1));
    assert_eq!(builds_only.cases[0].message(), Some("./p.go:3: undefined: x"));
    let crash = go(&[
        r#"{"Action":"run","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"output","Package":"p","Output":"panic: boom\n"}"#,
        r#"{"Action":"fail","Package":"p","Elapsed":0}"#,
    ]);
    assert_eq!((crash.tally.unfinished, crash.tally.errors), (1, 1));
}

#[test]
fn package_of_go_that_ran_out_of_time_says_so_and_not_only_that_it_failed() {
    let output = |test: &str, text: &str| {
        format!(r#"{{"Action":"output","Package":"p"{test},"Output":"{text}\n"}}"#)
    };
    let test = r#","Test":"TestA""#;
    let report = go(&[
        r#"{"Action":"run","Package":"p","Test":"TestA"}"#,
        &output(test, "=== RUN   TestA"),
        &output(test, "connects"),
        &output(test, "panic: test timed out after 2s"),
        &output(test, ""),
        &output(test, "goroutine 5 [running]:"),
        &output("", r"FAIL\tp\t2.031s"),
        r#"{"Action":"fail","Package":"p","Elapsed":2.031}"#,
    ]);
    let package = report.cases.iter().find(|case| case.kind == TestRowKind::Suite).unwrap();
    assert_eq!(package.message(), Some("panic: test timed out after 2s"));
    assert!(package.message_details().unwrap().contains("goroutine 5"), "{package:?}");
}

#[test]
fn package_that_an_older_go_does_not_build_is_a_failed_suite() {
    let lines = [
        r#"{"Action":"run","Package":"q","Test":"TestQ"}"#,
        r#"{"Action":"fail","Package":"q","Test":"TestQ"}"#,
        r#"{"Action":"fail","Package":"q"}"#,
        "# c [c.test]",
        "./c.go:3: undefined: x",
        "FAIL\tc [build failed]",
        "FAIL\tb [setup failed]",
        "FAIL\tq\t0.038s",
        "FAIL\td\t0.1s",
        "FAIL",
    ];
    let report = go(&lines);
    let rows: Vec<_> = (report.cases.iter())
        .map(|case| (&*case.suite, case.kind == TestRowKind::Suite, case.result))
        .collect();
    assert_eq!(
        rows,
        [("q", false, Failure), ("c", true, Error), ("b", true, Error), ("d", true, Error)]
    );
    assert_eq!(report.cases[1].message(), Some("./c.go:3: undefined: x"));
    assert_eq!(report.cases[2].message(), Some("FAIL\tb [setup failed]"));
    assert!(!report.summary.is_truncated);
    // Since Go 1.24 the events say so as well.
    let told = go(&[
        r#"{"Action":"start","Package":"c"}"#,
        r#"{"Action":"fail","Package":"c"}"#,
        "FAIL\tc [build failed]",
    ]);
    assert_eq!(suite_failures(&told), 1);
}

#[test]
fn lines_of_go_test_that_end_early_or_are_mixed_with_others_are_noted() {
    let run = r#"{"Action":"run","Package":"p","Test":"TestA"}"#;
    let cut = read(&format!("{run}\n{{\"Action\":\"pa"));
    assert!(cut.summary.is_truncated && cut.tally.unfinished == 1);
    assert_eq!(cut.summary.open_suites, [std::sync::Arc::from("p")]);
    let mixed = go(&[
        run,
        "go: downloading example.com/x v1.0.0",
        r#"{"Action":"pass","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"pass","Package":"p"}"#,
    ]);
    assert!(!mixed.summary.is_truncated);
    assert_eq!(mixed.summary.findings[0].rule, JunitRule::OtherLines);
    let below = go(&[
        "go: downloading example.com/x v1.0.0",
        "# q [q.test]",
        "./q.go:1: unused",
        run,
        r#"{"Action":"pass","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"pass","Package":"p"}"#,
    ]);
    assert_eq!((below.tally.tests, below.tally.successes), (1, 1));
    assert!(below.summary.findings.iter().all(|finding| finding.rule == JunitRule::OtherLines));
    let logged = go(&[
        r#"{"level":"info","msg":"the database started"}"#,
        r#"{"Action":"fail","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"fail","Package":"p"}"#,
    ]);
    assert_eq!((logged.tally.tests, logged.tally.failures), (1, 1));
    let cut_at_once = read(r#"{"Time":"2026-11-27T10:00:00Z","Action":"ru"#);
    assert!(cut_at_once.summary.is_truncated);
    let other = "a plain line\n{\"Action\" : 1}\n";
    assert!(TestReport::read(other.as_bytes()).is_err(), "no line of `go test -json`");
    // What was run again because it failed.
    let again = go(&[
        run,
        r#"{"Action":"fail","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"fail","Package":"p"}"#,
        run,
        r#"{"Action":"pass","Package":"p","Test":"TestA"}"#,
        r#"{"Action":"pass","Package":"p"}"#,
    ]);
    assert_eq!((again.tally.tests, again.tally.flaky), (1, 1));
}

#[test]
fn go_test_that_fails_once_in_a_count_is_a_failure_and_after_a_run_of_its_own_it_is_flaky() {
    let event = |action: &str, test: &str| {
        format!(r#"{{"Action":"{action}","Package":"p","Test":"{test}"}}"#)
    };
    let of_package = |action: &str| format!(r#"{{"Action":"{action}","Package":"p"}}"#);
    let read = |lines: &[String]| go(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let attempts = |report: &TestReport| -> Vec<_> {
        report.cases.iter().map(|case| (case.result, case.attempts)).collect()
    };
    let start = || of_package("start");
    let of_test =
        |result: &str| [event("run", "A"), event(result, "A"), of_package("fail")].to_vec();
    let counted = [vec![start()], of_test("fail")[..2].to_vec(), of_test("pass")].concat();
    let counted = read(&counted);
    assert_eq!(attempts(&counted), [(Failure, 1), (Success, 1)]);
    assert!(counted.uncounted_failure().is_none());
    let again = [vec![start()], of_test("fail"), vec![start()], of_test("pass")].concat();
    let again = read(&again[..again.len() - 1]);
    assert_eq!(attempts(&again), [(Success, 2)]);
    assert!(again.uncounted_failure().is_none());
    // Its process was killed: a second start, without an end before it.
    let killed =
        [vec![start(), event("run", "A"), start()], of_test("pass")[..2].to_vec()].concat();
    let killed = read(&[killed, vec![of_package("pass")]].concat());
    assert_eq!(attempts(&killed), [(Unfinished, 1), (Success, 1)]);
}

#[test]
fn second_run_of_go_that_has_another_test_is_no_rerun_so_a_failure_of_the_first_counts() {
    let event = |action: &str, test: &str| {
        format!(r#"{{"Action":"{action}","Package":"p","Test":"{test}"}}"#)
    };
    let of_test = |test: &str, result: &str| vec![event("run", test), event(result, test)];
    let of_package = |action: &str| vec![format!(r#"{{"Action":"{action}","Package":"p"}}"#)];
    let counts_with = |added: &str| {
        let lines = [
            of_package("start"),
            of_test("TestA", "fail"),
            of_package("fail"),
            of_package("start"),
            of_test("TestA", "pass"),
            of_test(added, "pass"),
            of_package("pass"),
        ];
        let lines = lines.concat();
        let tally = go(&lines.iter().map(String::as_str).collect::<Vec<_>>()).tally;
        (tally.tests, tally.failures, tally.flaky)
    };
    assert_eq!(counts_with("TestRaceOnly"), (3, 1, 0));
    // The test around it failed before it began.
    assert_eq!(counts_with("TestA/x"), (2, 0, 1));
}
