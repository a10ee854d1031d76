//! As much of XML as EC2's answers have: elements with text or with elements in them.

use quick_xml::Reader;
use quick_xml::events::Event;

/// EC2's namespace, of its API of this version.
const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    pub name: String,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    pub fn new(name: &str) -> Element {
        Element { name: name.to_owned(), ..Element::default() }
    }

    pub fn leaf(name: &str, text: impl ToString) -> Element {
        Element { text: text.to_string(), ..Element::new(name) }
    }

    /// An element called `name` with these in it.
    pub fn of(name: &str, children: impl IntoIterator<Item = Element>) -> Element {
        Element { children: children.into_iter().collect(), ..Element::new(name) }
    }

    /// Adds a leaf.
    pub fn with(mut self, name: &str, text: impl ToString) -> Element {
        self.set(name, text);
        self
    }

    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text of a child; empty where there is none.
    pub fn get(&self, name: &str) -> &str {
        self.child(name).map_or("", |child| child.text.as_str())
    }

    /// The children of the child `name`, which is a list.
    pub fn items(&self, name: &str) -> &[Element] {
        self.child(name).map_or(&[], |list| list.children.as_slice())
    }

    /// Puts a leaf in place of the child of that name.
    pub fn set(&mut self, name: &str, text: impl ToString) {
        self.put(Element::leaf(name, text));
    }

    /// Puts `child` in place of the one of its name.
    pub fn put(&mut self, child: Element) {
        match self.children.iter_mut().find(|other| other.name == child.name) {
            Some(other) => *other = child,
            None => self.children.push(child),
        }
    }

    pub fn parse(text: &str) -> Element {
        let mut reader = Reader::from_str(text);
        let mut open = vec![Element::default()];
        loop {
            match reader.read_event().unwrap_or_else(|error| panic!("{error} in {text}")) {
                Event::Start(start) => open.push(Element::new(start.name().as_ref())),
                Event::Empty(empty) => {
                    open.last_mut().expect("a root").children.push(Element::new(empty.name().as_ref()));
                }
                Event::Text(part) => open.last_mut().expect("a root").text += &part,
                Event::GeneralRef(reference) => {
                    let resolved = match reference.resolve_char_ref().expect("a character") {
                        Some(character) => character.to_string(),
                        None => quick_xml::escape::resolve_predefined_entity(&reference).expect("an entity").to_owned(),
                    };
                    open.last_mut().expect("a root").text += &resolved;
                }
                Event::End(_) => {
                    let mut done = open.pop().expect("an open element");
                    if !done.children.is_empty() {
                        done.text.clear();
                    }
                    open.last_mut().expect("a root").children.push(done);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        open.pop().and_then(|mut root| root.children.pop()).unwrap_or_else(|| panic!("no XML: {text:?}"))
    }

    /// As a whole document.
    pub fn document(&self) -> String {
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let namespace = if self.name == "Response" { String::new() } else { format!(" xmlns=\"{NAMESPACE}\"") };
        self.write(&mut text, &namespace);
        text
    }

    fn write(&self, text: &mut String, attributes: &str) {
        if self.children.is_empty() && self.text.is_empty() {
            *text += &format!("<{}{attributes}/>", self.name);
            return;
        }
        *text += &format!("<{}{attributes}>", self.name);
        *text += &quick_xml::escape::escape(self.text.as_str());
        for child in &self.children {
            child.write(text, "");
        }
        *text += &format!("</{}>", self.name);
    }
}

#[test]
fn element_that_was_written_is_read_again() {
    let text = "<A><name>a &amp; b&#x3C;</name><list><item>1</item><item><x/></item></list><empty/></A>";
    let element = Element::parse(text);
    assert_eq!(element.get("name"), "a & b<");
    assert_eq!(element.items("list").len(), 2);
    assert_eq!(Element::parse(&element.document()), element);
}
