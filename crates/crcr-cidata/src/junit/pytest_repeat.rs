//! pytest-repeat: `--count 3` makes `test_a[1-3]`, `test_a[2-3]` and `test_a[3-3]` of each test.

use std::collections::{HashMap, HashSet};

use crcr_domain::ci_data::test_run::TestCase;

/// Fewer repetitions of a single function may be parameters of its own.
const LEAST_REPETITIONS_OF_ONE: u32 = 10;

struct RepeatedName {
    /// Without the counter.
    name: String,
    repetition: u32,
    count: u32,
}

/// The names that the tests of a suite have without their counters, if all have complete ones. Parameters of some tests
/// may look alike.
pub(crate) fn names_without_counters(tests: &[&TestCase]) -> Option<Vec<String>> {
    let names: Vec<RepeatedName> =
        tests.iter().map(|case| RepeatedName::of(&case.name)).collect::<Option<_>>()?;
    are_all_repeated(tests, &names).then(|| names.into_iter().map(|name| name.name).collect())
}

fn are_all_repeated(tests: &[&TestCase], names: &[RepeatedName]) -> bool {
    let Some(RepeatedName { count, .. }) = names.first() else { return false };
    let mut repetitions: HashMap<(&str, &str), HashSet<u32>> = HashMap::new();
    for (case, name) in tests.iter().zip(names) {
        let test = (&*case.classname, &*name.name);
        repetitions.entry(test).or_default().insert(name.repetition);
    }
    let functions: HashSet<_> =
        repetitions.keys().map(|(class, name)| (*class, name.split('[').next())).collect();
    (functions.len() > 1 || *count >= LEAST_REPETITIONS_OF_ONE)
        && names.iter().all(|name| name.count == *count)
        && repetitions.values().all(|of_test| of_test.len() == *count as usize)
}

impl RepeatedName {
    /// Of `test_a[2-3]`, or of `test_a[x-2-3]` with a parameter.
    fn of(name: &str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(']')?.rsplit_once('-')?;
        let at = rest.rfind(['-', '['])?;
        let (repetition, count) = (number(&rest[at + 1..])?, number(count)?);
        let name = if rest[at..].starts_with('[') {
            rest[..at].to_owned()
        } else {
            format!("{}]", &rest[..at])
        };
        (count > 1 && (1..=count).contains(&repetition)).then_some(Self { name, repetition, count })
    }
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}
