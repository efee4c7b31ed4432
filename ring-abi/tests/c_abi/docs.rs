//! Documentation of Rust as comments of C: links become C names, paragraphs are wrapped anew, diagrams stay.

use std::collections::BTreeMap;

/// Columns of the header, as of the sources.
const WIDTH: usize = 120;

/// What links may name: paths in Rust, and what C calls them.
pub type Names = BTreeMap<String, String>;

/// A comment for Doxygen, `indent` columns in: one line if there is room. Nothing without documentation.
pub fn comment(docs: &[String], names: &Names, indent: usize) -> String {
    let margin = " ".repeat(indent);
    match &lines(docs, names, WIDTH - indent - " * ".len())[..] {
        [] => String::new(),
        [line] if indent + line.len() + "/**  */".len() <= WIDTH => format!("{margin}/** {line} */\n"),
        lines => {
            let line = |line: &String| format!("{margin} * {line}").trim_end().to_owned() + "\n";
            format!("{margin}/**\n{}{margin} */\n", lines.iter().map(line).collect::<String>())
        }
    }
}

/// The text in lines of at most `width` columns, without examples.
pub fn lines(docs: &[String], names: &Names, width: usize) -> Vec<String> {
    let mut text = Text { names, width, paragraph: String::new(), out: Vec::new() };
    let mut inside = Inside::Prose;
    for line in docs {
        inside = match (inside, line.strip_prefix("```")) {
            (Inside::Prose, Some("text")) => text.line("@verbatim", Inside::Diagram),
            (Inside::Prose, Some(_)) | (Inside::Example, None) => Inside::Example,
            (Inside::Example, Some(_)) => Inside::Prose,
            (Inside::Diagram, Some(_)) => text.line("@endverbatim", Inside::Prose),
            (Inside::Diagram, None) => text.line(line, Inside::Diagram),
            (Inside::Prose, None) => text.prose(line),
        };
    }
    text.flush();
    assert!(text.out.iter().all(|line| !line.contains("*/")), "it would end the comment: {docs:?}");
    while text.out.last().is_some_and(String::is_empty) {
        text.out.pop();
    }
    text.out
}

#[derive(Clone, Copy)]
enum Inside {
    Prose,
    Diagram,
    Example,
}

struct Text<'a> {
    names: &'a Names,
    width: usize,
    paragraph: String,
    out: Vec<String>,
}

impl Text<'_> {
    fn prose(&mut self, line: &str) -> Inside {
        if line.is_empty() {
            self.flush();
            if self.out.last().is_some_and(|last| !last.is_empty()) {
                self.out.push(String::new());
            }
        } else if let Some(heading) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')) {
            self.flush();
            self.out.push(format!("@par {}", linked(heading, self.names)));
        } else {
            self.paragraph += if self.paragraph.is_empty() { "" } else { " " };
            self.paragraph += line;
        }
        Inside::Prose
    }

    /// As it is.
    fn line(&mut self, line: &str, then: Inside) -> Inside {
        self.flush();
        self.out.push(line.to_owned());
        then
    }

    fn flush(&mut self) {
        let text = linked(&std::mem::take(&mut self.paragraph), self.names);
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > self.width {
                self.out.push(std::mem::take(&mut line));
            }
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
        if !line.is_empty() {
            self.out.push(line);
        }
    }
}

/// Links of Rust as names of C.
fn linked(text: &str, names: &Names) -> String {
    let Some((before, label, path, after)) = first_link(text) else { return text.to_owned() };
    let path = path.trim_start_matches("crate::");
    let name = named(path, names).unwrap_or_else(|| panic!("a link to {path}, which C does not have, in: {text}"));
    let says_it = path == label || path.rsplit("::").next() == Some(label);
    let name = match after.starts_with(char::is_alphanumeric) {
        // The plural of a link.
        true => format!("`{name}`"),
        false if says_it => name.clone(),
        false => format!("{label} ({name})"),
    };
    // The names in Rust that begin with a vowel do not in C.
    let before = before.strip_suffix("an ").map_or(before.to_owned(), |before| format!("{before}a "));
    format!("{before}{name}{}", linked(after, names))
}

/// Links inside of a module leave the module out.
fn named<'a>(path: &str, names: &'a Names) -> Option<&'a String> {
    let suffix = format!("::{path}");
    names.get(path).or_else(|| {
        let mut inside = names.iter().filter(|(full, _)| full.ends_with(&suffix));
        inside.next().filter(|_| inside.next().is_none()).map(|(_, name)| name)
    })
}

/// The text before it, its label, its target, the text behind it.
fn first_link(text: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, rest) = text.split_once('[')?;
    let (label, after) = rest.split_once(']')?;
    let word = label.trim_matches('`');
    match after.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((path, after)) => Some((before, word, path, after)),
        None if word.len() + 2 == label.len() => Some((before, word, word, after)),
        None => None,
    }
}
