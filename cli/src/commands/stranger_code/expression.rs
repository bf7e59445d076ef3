//! Expressions of a workflow (`${{ }}`), as the contexts that they read.

/// A context that an expression reads, such as `github.event.pull_request.title`: in lower case, since GitHub
/// doesn't distinguish it, and with `['a']` written as `.a`. `*` stands for a name that isn't fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextMention {
    pub path: String,
    /// Whether its text can be in the result. It can't if the expression only compares it.
    pub is_value: bool,
}

/// The inside of each `${{ }}`.
pub fn expressions(text: &str) -> Vec<&str> {
    let mut found = vec![];
    let mut rest = text;
    while let Some(start) = rest.find("${{") {
        let inner = &rest[start + 3..];
        let end = end_of(inner);
        found.push(&inner[..end]);
        rest = &inner[end..];
    }
    found
}

/// Where an expression ends. `}}` in quotes doesn't end it.
fn end_of(inner: &str) -> usize {
    let mut quoted = false;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'\'' => quoted = !quoted,
            b'}' if !quoted && inner[at..].starts_with("}}") => return at,
            _ => {}
        }
    }
    inner.len()
}

/// What the expressions of a text read.
pub fn mentions(text: &str) -> Vec<ContextMention> {
    expressions(text).into_iter().flat_map(mentions_of).collect()
}

/// The quoted texts that an expression may result in.
pub fn literals(expression: &str) -> Vec<String> {
    let mut reader = ExpressionReader::new(expression);
    reader.read(false);
    reader.literals
}

/// What one expression reads, without `${{ }}` around it.
pub fn mentions_of(expression: &str) -> Vec<ContextMention> {
    let mut reader = ExpressionReader::new(expression);
    reader.read(false);
    reader.found
}

/// Functions whose result holds nothing of their arguments' text.
const TELLING_FUNCTIONS: [&str; 4] = ["contains", "startswith", "endswith", "hashfiles"];

/// Brackets in brackets. Nobody writes as many, and each takes a part of the stack.
const MAX_DEPTH: usize = 50;

struct ExpressionReader {
    text: Vec<char>,
    at: usize,
    found: Vec<ContextMention>,
    literals: Vec<String>,
    depth: usize,
}

impl ExpressionReader {
    fn new(expression: &str) -> Self {
        let text = expression.to_lowercase().chars().collect();
        Self { text, at: 0, found: vec![], literals: vec![], depth: 0 }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn is_before_comparison(&mut self) -> bool {
        self.skip_spaces();
        let next = self.text.get(self.at + 1).copied();
        matches!(self.peek(), Some('<' | '>'))
            || (matches!(self.peek(), Some('=' | '!')) && next == Some('='))
    }

    /// Reads up to the bracket that closes what is open, or to the end.
    fn read(&mut self, compared: bool) {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            // It may read anything.
            self.found.push(ContextMention { path: "*".to_owned(), is_value: true });
            self.at = self.text.len();
        }
        self.read_inside(compared);
        self.depth -= 1;
    }

    fn read_inside(&mut self, compared: bool) {
        let mut after_comparison = false;
        while let Some(next) = self.peek() {
            match next {
                ')' | ']' => {
                    self.at += 1;
                    return;
                }
                '(' | '[' => {
                    self.at += 1;
                    self.read(compared);
                    after_comparison = false;
                }
                '\'' => {
                    let literal = self.quoted();
                    if !self.is_before_comparison() && !after_comparison && !compared {
                        self.literals.push(literal);
                    }
                    after_comparison = false;
                }
                '<' | '>' | '=' | '!' => {
                    after_comparison = true;
                    self.at += 1;
                }
                _ if next.is_alphabetic() || next == '_' => {
                    self.context(compared || after_comparison);
                    after_comparison = false;
                }
                _ if next.is_alphanumeric() => {
                    self.name();
                    after_comparison = false;
                }
                _ => self.at += 1,
            }
        }
    }

    /// A text in quotes; two quotes stand for one.
    fn quoted(&mut self) -> String {
        self.at += 1;
        let mut text = String::new();
        while let Some(next) = self.peek() {
            self.at += 1;
            if next == '\'' {
                if self.peek() != Some('\'') {
                    break;
                }
                self.at += 1;
            }
            text.push(next);
        }
        text
    }

    fn name(&mut self) -> String {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-') {
            self.at += 1;
        }
        self.text[start..self.at].iter().collect()
    }

    fn context(&mut self, compared: bool) {
        let mut path = self.name();
        loop {
            self.skip_spaces();
            match self.peek() {
                Some('.') => {
                    self.at += 1;
                    self.skip_spaces();
                    path.push('.');
                    match self.peek() {
                        Some('*') => {
                            self.at += 1;
                            path.push('*');
                        }
                        _ => path.push_str(&self.name()),
                    }
                }
                Some('[') => {
                    self.at += 1;
                    self.skip_spaces();
                    path.push('.');
                    if self.peek() == Some('\'') {
                        path.push_str(&self.quoted());
                        self.skip_spaces();
                        if self.peek() == Some(']') {
                            self.at += 1;
                            continue;
                        }
                    }
                    // The name is computed.
                    path.truncate(path.rfind('.').unwrap_or_default());
                    path.push_str(".*");
                    self.read(true);
                }
                Some('(') if !path.contains('.') => {
                    self.at += 1;
                    let telling = TELLING_FUNCTIONS.contains(&path.as_str());
                    self.read(compared || telling);
                    return;
                }
                _ => break,
            }
        }
        let is_value = !self.is_before_comparison() && !compared;
        self.found.push(ContextMention { path, is_value });
    }
}

/// Whether one of two contexts is in the other, or they are the same.
pub fn overlaps(one: &str, other: &str) -> bool {
    one.split('.').zip(other.split('.')).all(|(a, b)| a == b || a == "*" || b == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_context_is_the_same_path() {
        let values = |text: &str| -> Vec<String> {
            let all = mentions(text).into_iter().filter(|found| found.is_value);
            all.map(|found| found.path).collect()
        };
        let head = "github.event.pull_request.head.sha";
        for text in [
            "${{ github.event.pull_request.head.sha }}",
            "${{github.event['pull_request'][ 'head' ].sha}}",
            "${{ GITHUB.Event.Pull_Request.Head.SHA }}",
            "a ${{ format('}}{0}', github . event.pull_request.head.sha) }} b",
            "${{ fromJSON(toJSON(github.event.pull_request.head.sha)) }}",
            "${{ github.event_name == 'x' && github.event.pull_request.head.sha || '' }}",
        ] {
            assert_eq!(values(text), [head], "{text}");
        }
        assert_eq!(values("${{ a[b.c].d }}"), ["a.*.d"]);
        assert_eq!(values("${{ toJSON( github ) }} ${{ a.*.b }}"), ["github", "a.*.b"]);
        for compared in [
            "${{ contains(github.event.issue.title, 'x') }}",
            "${{ github.event.issue.title == 'x' && 'a' || 'b' }}",
            "${{ 'x' != github.event.issue.title }}",
            "${{ !github.event.issue.title }}",
            "${{ 'github.event.issue.title' }}",
            "github.event.issue.title",
        ] {
            assert_eq!(values(compared), [""; 0], "{compared}");
        }
        let deep = format!("${{{{ {}github.x }}}}", "(".repeat(100_000));
        assert_eq!(values(&deep), ["*"]);
        let runner = "github.event_name == 'push' && 'own' || 'ubuntu-latest'";
        assert_eq!(literals(runner), ["own", "ubuntu-latest"]);
    }

    #[test]
    fn contexts_overlap_if_one_holds_the_other() {
        let title = "github.event.issue.title";
        for (other, expected) in [
            ("github", true),
            ("github.event.*.title", true),
            ("github.event.issue.title.x", true),
            ("github.event_name", false),
            ("github.event.comment", false),
        ] {
            assert_eq!(overlaps(title, other), expected, "{other}");
        }
    }
}
