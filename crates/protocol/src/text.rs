//! Foreign text: what goes into a log line, and what counts as a number.
//!
//! Ids and bodies come from tokens and other people's messages. Written raw into a log, a newline
//! in one forges a line and a bidirectional control rearranges what the reader sees.

use std::fmt::{self, Display, Formatter, Write};

/// Text made safe for one line of a log: control characters, line and paragraph separators and
/// bidirectional controls as escapes, a backslash doubled so that an escape is never ambiguous.
/// Everything else, combining marks and emoji included, stays readable.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // str::escape_debug would do, but for the quotes and combining marks that it escapes too.
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                c if misleads(c) => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A number in decimal digits alone: `u64::from_str` would also take a leading `+`.
pub(crate) fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::Escaped;
    use proptest::prelude::*;

    #[test]
    fn readable_text_stays_and_the_rest_is_escaped() {
        for (text, shown) in [
            ("consumer101", "consumer101"),
            ("żółw \"q\" 'q' हिन्दी 🐢\u{fe0f}", "żółw \"q\" 'q' हिन्दी 🐢\u{fe0f}"),
            ("a\nb\r\tc", r"a\nb\r\tc"),
            (r"a\nb", r"a\\nb"),
            ("\u{1b}[31m\u{0}\u{85}", r"\u{1b}[31m\u{0}\u{85}"),
            ("\u{202e}evil\u{2028}", r"\u{202e}evil\u{2028}"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
    }

    proptest! {
        #[test]
        fn one_line_and_no_control(text in any::<String>()) {
            prop_assert!(!Escaped(&text).to_string().chars().any(super::misleads));
        }

        #[test]
        fn different_texts_look_different(a in "[\\\\nu{}a\n\r\u{202e}]{0,6}", b in "[\\\\nu{}a\n\r\u{202e}]{0,6}") {
            prop_assert_eq!(a == b, Escaped(&a).to_string() == Escaped(&b).to_string());
        }
    }
}
