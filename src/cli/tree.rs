//! Trees for people.

use std::io::{self, IsTerminal};

use super::output::reads_utf8;

/// A line, and what stands on it.
#[derive(Debug, Default)]
pub struct Branch {
    pub text: String,
    pub children: Vec<Branch>,
}

impl Branch {
    pub fn new(text: String) -> Self {
        Branch { text, children: Vec::new() }
    }
}

/// What the lines are drawn with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    Utf8,
    Ascii,
}

impl Lines {
    /// ASCII where nobody looks, or where UTF-8 would not be read.
    pub fn for_output() -> Self {
        if io::stdout().is_terminal() && reads_utf8() { Lines::Utf8 } else { Lines::Ascii }
    }

    /// Ends with a newline.
    pub fn draw(self, root: &Branch) -> String {
        let mut text = format!("{}\n", root.text);
        self.draw_below(root, "", &mut text);
        text
    }

    fn draw_below(self, branch: &Branch, margin: &str, text: &mut String) {
        let [fork, last, pass] = match self {
            Lines::Utf8 => ["├─ ", "└─ ", "│  "],
            Lines::Ascii => ["|- ", "`- ", "|  "],
        };
        for (at, child) in branch.children.iter().enumerate() {
            let is_last = at + 1 == branch.children.len();
            text.push_str(margin);
            text.push_str(if is_last { last } else { fork });
            text.push_str(&child.text);
            text.push('\n');
            self.draw_below(child, &format!("{margin}{}", if is_last { "   " } else { pass }), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_join_what_belongs_together() {
        let leaf = |text: &str| Branch::new(text.to_owned());
        let root = Branch {
            text: "root".to_owned(),
            children: vec![
                Branch { text: "a".to_owned(), children: vec![leaf("b")] },
                Branch { text: "c".to_owned(), children: vec![leaf("d")] },
            ],
        };
        assert_eq!(Lines::Ascii.draw(&root), "root\n|- a\n|  `- b\n`- c\n   `- d\n");
        assert_eq!(Lines::Utf8.draw(&root), "root\n├─ a\n│  └─ b\n└─ c\n   └─ d\n");
    }
}
