//! Which format a report has, and what has to be known across its elements.

use std::collections::HashMap;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::TestCase;
use quick_xml::events::BytesStart;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportDialect {
    Junit,
    Nunit,
    Xunit,
    Trx,
}

impl ReportDialect {
    pub(crate) fn of_root(name: &str, tag: &BytesStart<'_>) -> Option<Self> {
        match name {
            "testcase" => Some(Self::Junit),
            // `<TestCase>` is Qt's own format.
            suite
                if ["testsuites", "testsuite"]
                    .iter()
                    .any(|name| name.eq_ignore_ascii_case(suite)) =>
            {
                Some(Self::Junit)
            }
            "test-run" => Some(Self::Nunit),
            "assemblies" => Some(Self::Xunit),
            // CppUnit has the same root, without a namespace.
            "TestRun" => {
                let mut attributes = tag.attributes();
                let is_trx = attributes.with_checks(false).flatten().any(|attribute| {
                    attribute.key.0.starts_with("xmlns") && attribute.value.contains("TeamTest")
                });
                is_trx.then_some(Self::Trx)
            }
            _ => None,
        }
    }
}

/// Tests of TRX, whose classes are named at its end.
#[derive(Default)]
pub(crate) struct TrxTests {
    held: Vec<(String, TestCase)>,
    /// The assembly and the class of each test, by the test's id.
    classes: HashMap<String, (Arc<str>, Arc<str>)>,
    /// Id and assembly of the `<UnitTest>` that is open.
    open: (String, Arc<str>),
}

impl TrxTests {
    pub(crate) fn open_definition(&mut self, id: String, assembly: Arc<str>) {
        self.open = (id, assembly);
    }

    pub(crate) fn name_class(&mut self, class: Arc<str>) {
        let (id, assembly) = &mut self.open;
        self.classes.insert(std::mem::take(id), (Arc::clone(assembly), class));
    }

    pub(crate) fn hold(&mut self, id: String, case: TestCase) {
        self.held.push((id, case));
    }

    pub(crate) fn named(self) -> impl Iterator<Item = TestCase> {
        let Self { held, classes, .. } = self;
        held.into_iter().map(move |(id, mut case)| {
            if let Some((assembly, class)) = classes.get(&id) {
                case.suite = Arc::clone(assembly);
                case.classname = Arc::clone(class);
                drop_class_of_name(&mut case);
            }
            case
        })
    }
}

/// The name that xUnit.net and some frameworks of TRX show begins with the class.
pub(crate) fn drop_class_of_name(case: &mut TestCase) {
    let name = case.name.strip_prefix(&*case.classname).and_then(|name| name.strip_prefix('.'));
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        case.name = name.to_owned();
    }
}
