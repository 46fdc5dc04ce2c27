//! Sections, tables and code of a Markdown text: as much as our own documents use.

/// What stands under a heading (`## Limits`), up to the next one of its level or above.
pub(crate) fn section<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let level = heading.bytes().take_while(|byte| *byte == b'#').count();
    let start = text.find(&format!("\n{heading}\n"))? + heading.len() + 2;
    let rest = text.get(start..)?;
    let mut fenced = false;
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        fenced ^= line.starts_with("```");
        let marks = line.bytes().take_while(|byte| *byte == b'#').count();
        if !fenced && (1..=level).contains(&marks) {
            break;
        }
        end += line.len();
    }
    rest.get(..end)
}

/// The cells of all table rows, without headings.
pub(crate) fn rows(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    let is_rule = |line: &str| line.contains("---") && line.chars().all(|c| "|-: ".contains(c));
    let cells = |line: &&str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rules: Vec<usize> = (0..lines.len()).filter(|at| is_rule(lines[*at])).collect();
    let is_row = |at: &usize| !rules.contains(at) && !rules.contains(&(at + 1));
    (0..lines.len()).filter(is_row).map(|at| cells(&lines[at])).collect()
}

/// What stands between single backticks on one line.
pub(crate) fn code_spans(text: &str) -> Vec<&str> {
    let outside_of_fences = text.split("```").step_by(2);
    outside_of_fences
        .flat_map(str::lines)
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|span| !span.is_empty())
        .collect()
}

/// The lines inside of fences.
pub(crate) fn code_lines(text: &str) -> Vec<&str> {
    text.split("```").skip(1).step_by(2).flat_map(|block| block.lines().skip(1)).collect()
}

#[test]
fn a_section_ends_at_the_next_heading_of_its_level_and_not_in_code() {
    let text = "# T\n\n## A\none\n```sh\n## no heading\n```\n### A1\ntwo\n## B\nthree\n";
    assert_eq!(section(text, "## A"), Some("one\n```sh\n## no heading\n```\n### A1\ntwo\n"));
    assert_eq!(section(text, "## B"), Some("three\n"));
    assert_eq!(section(text, "## C"), None);
}

#[test]
fn rows_are_what_stands_below_the_rule() {
    let text = "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n| c |\n| --- |\n| 3 |\n";
    assert_eq!(rows(text), [vec!["1", "2"], vec!["3"]]);
}

#[test]
fn spans_and_lines_of_code_are_told_apart() {
    let text = "a `b` c `d`\n```sh\ne `f`\n```\n`g`\n";
    assert_eq!(code_spans(text), ["b", "d", "g"]);
    assert_eq!(code_lines(text), ["e `f`"]);
}
