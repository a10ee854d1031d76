//! The architecture, held by tests: arrows between layers point down only, no modules import each other in a circle, no backend knows
//! another, no protocol is named above the backends.
//!
//! main -> cli, server -> rpc -> ops -> backend, os -> volume, metrics; a backend may use os. Only rpc, server and the
//! command line's client know of gRPC.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A layer, and what of this crate it may name.
const LAYERS: [(&str, &[&str]); 9] = [
    ("volume", &["volume"]),
    ("metrics.rs", &[]),
    ("os", &["os", "metrics", "volume"]),
    ("backend", &["backend", "os", "metrics", "volume"]),
    ("ops", &["ops", "backend", "os", "metrics", "volume"]),
    ("rpc", &["rpc", "csi", "ops", "backend", "metrics", "volume"]),
    ("config", &["config", "backend", "volume"]),
    ("server", &["server", "rpc", "admin", "csi", "pluginregistration", "ops", "os", "volume"]),
    ("cli", &["cli", "config", "server", "rpc", "admin", "csi", "ops", "backend", "os", "metrics", "volume"]),
];

/// Crates that speak gRPC, and the layers that may.
const GRPC: [&str; 5] = ["tonic::", "prost::", "prost_types::", "crate::csi", "crate::admin"];
const GRPC_LAYERS: [&str; 3] = ["rpc", "server", "cli"];

fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a readable directory");
    entries
        .flat_map(|entry| sources(&entry.expect("a readable entry").path()))
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

/// The modules named behind `crate::`, also in a braced list.
fn named(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in code.split("crate::").skip(1) {
        let list = part
            .strip_prefix('{')
            .map_or_else(|| vec![part], |list| list.split('}').next().unwrap_or_default().split(',').collect());
        for item in list {
            let name: String = item.trim().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            names.push(name);
        }
    }
    names
}

fn without_comments(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn arrows_point_down_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for (layer, allowed) in LAYERS {
        for path in sources(&root.join(layer)) {
            let code = without_comments(&fs::read_to_string(&path).expect("a readable source"));
            for name in named(&code) {
                seen += 1;
                assert!(
                    allowed.contains(&name.as_str()),
                    "{} names crate::{name}; {layer} may name only {allowed:?}",
                    path.display()
                );
            }
            if !GRPC_LAYERS.contains(&layer) {
                for word in GRPC {
                    assert!(!code.contains(word), "{} names {word}: only {GRPC_LAYERS:?} know of gRPC", path.display());
                }
            }
        }
    }
    assert!(seen > 50, "the test has stopped finding what it looks for");
}

#[test]
fn programs_are_started_in_os_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root).into_iter().filter(|path| !path.starts_with(root.join("os"))) {
        let code = fs::read_to_string(&path).expect("a readable source");
        let production = code.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(!without_comments(production).contains("Command::new"), "{} starts a program", path.display());
    }
}

const BACKENDS: [&str; 10] = ["azure", "cinder", "cloud", "directory", "ec2", "fake", "gce", "image", "iscsi", "nfs"];
/// Backends that know another one, and why.
const SIBLINGS: [(&str, &str, &str); 5] = [
    ("azure", "cloud", "cloud/ is what all clouds share"),
    ("cinder", "cloud", "cloud/ is what all clouds share"),
    ("ec2", "cloud", "cloud/ is what all clouds share"),
    ("gce", "cloud", "cloud/ is what all clouds share"),
    ("iscsi", "image", "a target's LUNs are the images of a pool"),
];

/// Words of a protocol, which is its backend's business alone.
const PROTOCOLS: [&str; 10] = ["azure", "cinder", "nfs", "nfs4", "iscsi", "iscsid", "iscsiadm", "ebs", "ec2", "gce"];
const ABOVE_BACKENDS: [&str; 3] = ["ops", "rpc", "server"];
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// A way from a module back to itself, if there is one: the modules on it, each with the path by which it uses the next.
fn circle(graph: &Imports) -> Option<Vec<String>> {
    let (mut whole, mut way) = (BTreeSet::new(), Vec::new());
    graph.keys().find_map(|module| walk(graph, module, &mut whole, &mut way))
}

fn walk<'a>(
    graph: &'a Imports,
    module: &'a ModulePath,
    whole: &mut BTreeSet<&'a ModulePath>,
    way: &mut Vec<&'a ModulePath>,
) -> Option<Vec<String>> {
    if let Some(at) = way.iter().position(|on_it| *on_it == module) {
        let next = way.iter().skip(at + 1).chain([&module]);
        let pairs = way.iter().skip(at).zip(next);
        return Some(pairs.map(|(from, to)| format!("{} uses {}", from.join("::"), graph[*from][*to])).collect());
    }
    if whole.contains(module) {
        return None;
    }
    way.push(module);
    let found = graph[module].keys().find_map(|next| walk(graph, next, whole, way));
    way.pop();
    whole.insert(module);
    found
}

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let graph = imports(&modules(&root()));
    assert!(graph.values().map(BTreeMap::len).sum::<usize>() > 1000, "the test has stopped finding what it looks for");
    if let Some(circle) = circle(&graph) {
        panic!("a circle of imports; move what both sides use into a module below them:\n  {}", circle.join("\n  "));
    }
}

#[test]
fn circle_of_two_files_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, code: &str| fs::write(directory.path().join(name), code).expect("written");
    write("lib.rs", "mod a; mod b; mod c;");
    write("a.rs", "pub use super::b::{self, Y as Z}; pub struct X; fn f(_: Z) {}");
    write("b.rs", "//! super::a::X\npub struct Y; #[cfg(test)] use crate::a::X;");
    write("c.rs", "mod inner { use super::K; const S: &str = \"crate::a::X\"; } const K: u8 = 0;");
    assert_eq!(circle(&imports(&modules(directory.path()))), None, "comments, strings, tests and inner modules import nothing");
    write("b.rs", "pub struct Y; fn f(_: crate::a::X) {}");
    let found = circle(&imports(&modules(directory.path()))).expect("a circle");
    assert_eq!(found, ["a uses Z", "b uses crate::a::X"]);
}

#[test]
fn backends_do_not_import_their_siblings() {
    let mut found = BTreeSet::new();
    for (from, targets) in imports(&modules(&root())) {
        for to in targets.keys() {
            if let ([first, from, ..], [second, to, ..]) = (from.as_slice(), to.as_slice())
                && [first, second].iter().all(|layer| *layer == "backend")
                && from != to
                && [from, to].iter().all(|name| BACKENDS.contains(&name.as_str()))
            {
                found.insert((from.clone(), to.clone()));
            }
        }
    }
    let declared: BTreeSet<_> = SIBLINGS.iter().map(|(from, to, _)| ((*from).to_owned(), (*to).to_owned())).collect();
    assert_eq!(found, declared, "found, and declared in SIBLINGS");
}

#[test]
fn protocols_are_not_named_above_the_backends() {
    let mut found = BTreeSet::new();
    for path in ABOVE_BACKENDS.iter().flat_map(|layer| sources(&root().join(layer))) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with("tests.rs") {
            continue;
        }
        let code = fs::read_to_string(&path).expect("a readable source");
        let production = without_comments(code.split("#[cfg(test)]").next().unwrap_or_default()).to_lowercase();
        let production: Vec<&str> = production.lines().map(|line| line.split(" // ").next().unwrap_or_default()).collect();
        if production.join("\n").split(|c: char| !c.is_alphanumeric()).any(|word| PROTOCOLS.contains(&word)) {
            found.insert(path.strip_prefix(root()).expect("below src").display().to_string());
        }
    }
    assert_eq!(found, BTreeSet::new(), "name a protocol; say it in its backend");
}

/// What one source file of the crate says, as far as imports go.
#[derive(Default)]
struct Module {
    children: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in the code outside of `use`.
    paths: Vec<Vec<String>>,
}

/// A name that a `use` binds.
struct Import {
    name: String,
    path: Vec<String>,
    public: bool,
}

type ModulePath = Vec<String>;
type Imports = BTreeMap<ModulePath, BTreeMap<ModulePath, String>>;

/// The identifiers and punctuation of a source, without comments, strings, characters and lifetimes.
fn tokens(code: &str) -> Vec<String> {
    let code: Vec<char> = code.chars().collect();
    let at = |i: usize| code.get(i).copied().unwrap_or('\0');
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut i, mut tokens) = (0, Vec::new());
    while i < code.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => i += code[i..].iter().take_while(|c| **c != '\n').count(),
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= code.len() {
                        break;
                    }
                }
            }
            '"' => i = after_string(&code, i),
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += if at(i + 1) == '\\' { 3 } else { 2 };
                i += code[i..].iter().take_while(|c| **c != '\'').count() + 1;
            }
            '\'' => i += 1 + code[i + 1..].iter().take_while(|c| word(**c)).count(),
            c if word(c) => {
                let name: String = code[i..].iter().take_while(|c| word(**c)).collect();
                i += name.chars().count();
                let hashes = code[i..].iter().take_while(|c| **c == '#').count();
                match name.as_str() {
                    "r" | "br" | "cr" if at(i + hashes) == '"' => {
                        let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                        let rest: String = code[i + hashes + 1..].iter().collect();
                        let length = rest.find(&end).map_or(rest.len(), |at| at + end.len());
                        i += hashes + 1 + rest[..length].chars().count();
                    }
                    "b" | "c" if at(i) == '"' => i = after_string(&code, i),
                    _ => tokens.push(name),
                }
            }
            ':' if at(i + 1) == ':' => {
                tokens.push("::".to_owned());
                i += 2;
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    tokens
}

fn after_string(code: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < code.len() && code[i] != '"' {
        i += if code[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// The end of the item that begins at `start`: behind its `;` or its body.
fn item_end(tokens: &[String], start: usize) -> usize {
    let is_use = tokens[start..].iter().take(8).any(|token| token == "use");
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(start) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token == "}" && !is_use {
                    return i + 1;
                }
            }
            ";" if depth == 0 => return i + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn attribute_end(tokens: &[String], start: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(start) {
        match token.as_str() {
            "[" => depth += 1,
            "]" => {
                depth -= 1;
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Without the items that are compiled for tests only.
fn production(tokens: &[String]) -> Vec<String> {
    let (mut i, mut kept) = (0, Vec::new());
    while i < tokens.len() {
        if tokens[i] == "#" && tokens.get(i + 1).is_some_and(|token| token == "[") {
            let end = attribute_end(tokens, i);
            if tokens[i + 2..end - 1].concat() == "cfg(test)" {
                let mut start = end;
                while tokens[start] == "#" {
                    start = attribute_end(tokens, start);
                }
                i = item_end(tokens, start);
                continue;
            }
            i = end;
            continue;
        }
        kept.push(tokens[i].clone());
        i += 1;
    }
    kept
}

/// The names that a `use` tree binds.
fn use_tree(tokens: &[String], i: &mut usize, prefix: &[String], public: bool, imports: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    loop {
        match tokens[*i].as_str() {
            "::" => *i += 1,
            "{" => {
                *i += 1;
                while tokens[*i] != "}" {
                    use_tree(tokens, i, &path, public, imports);
                    if tokens[*i] == "," {
                        *i += 1;
                    }
                }
                *i += 1;
                return;
            }
            "as" => {
                imports.push(Import { name: tokens[*i + 1].clone(), path, public });
                *i += 2;
                return;
            }
            "," | "}" | ";" => {
                let name = path.last().cloned().unwrap_or_default();
                imports.push(Import { name, path, public });
                return;
            }
            // `{self}` names what it stands behind.
            "self" if !path.is_empty() => *i += 1,
            name => {
                path.push(name.to_owned());
                *i += 1;
            }
        }
    }
}

fn parse(file: &Path) -> Module {
    let code = fs::read_to_string(file).expect("a readable source");
    let tokens = production(&tokens(&code));
    let mut module = Module::default();
    let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    // Braces, and at which depth a module within the file begins: `super` in it is the file.
    let (mut depth, mut inline) = (0, Vec::new());
    let mut i = 0;
    while i < tokens.len() {
        let before = i.checked_sub(1).map_or("", |i| tokens[i].as_str());
        match tokens[i].as_str() {
            "use" if before != "<" && before != "+" => {
                i += 1;
                let mut bound = Vec::new();
                use_tree(&tokens, &mut i, &[], ["pub", ")"].contains(&before), &mut bound);
                // What a module within the file binds is no name of the file.
                module.imports.extend(bound.into_iter().filter(|_| inline.is_empty()));
            }
            "mod" if tokens.get(i + 2).is_some_and(|token| token == ";") => {
                module.children.insert(tokens[i + 1].clone());
                i += 3;
            }
            "mod" if tokens.get(i + 2).is_some_and(|token| token == "{") => {
                inline.push(depth);
                i += 2;
            }
            "{" => (depth, i) = (depth + 1, i + 1),
            "}" => {
                (depth, i) = (depth - 1, i + 1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
            }
            "super" if !inline.is_empty() => i += 2,
            token if is_name(token) && before != "." && before != "::" => {
                let mut path = vec![tokens[i].clone()];
                i += 1;
                while i + 1 < tokens.len() && tokens[i] == "::" && is_name(&tokens[i + 1]) {
                    path.push(tokens[i + 1].clone());
                    i += 2;
                }
                module.paths.push(path);
            }
            _ => i += 1,
        }
    }
    module
}

/// All modules that have a file, by path; `[]` is the crate.
fn modules(src: &Path) -> BTreeMap<ModulePath, Module> {
    let mut found = BTreeMap::new();
    let mut queue: Vec<(ModulePath, PathBuf)> = vec![(Vec::new(), src.join("lib.rs"))];
    while let Some((path, file)) = queue.pop() {
        let module = parse(&file);
        let directory = path.iter().fold(src.to_owned(), |directory, name| directory.join(name));
        for child in &module.children {
            let mut at = path.clone();
            at.push(child.clone());
            let candidates = [directory.join(format!("{child}.rs")), directory.join(child).join("mod.rs")];
            let file = candidates.iter().find(|file| file.is_file()).unwrap_or_else(|| panic!("{at:?} has no file"));
            queue.push((at, file.clone()));
        }
        found.insert(path, module);
    }
    found
}

/// The module in which the path's item is defined, through re-exports, and whether it is a whole module; `None` for what is not of this
/// crate.
fn resolve(modules: &BTreeMap<ModulePath, Module>, from: &[String], path: &[String], depth: usize) -> Option<(ModulePath, bool)> {
    if depth > 16 {
        return None;
    }
    let mut at = from.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        "Self" => return None,
        first => {
            let module = &modules[from];
            if !module.children.contains(first) && !module.imports.iter().any(|import| import.name == first) {
                return None;
            }
        }
    }
    while let Some(name) = rest.first() {
        let module = &modules[&at];
        if module.children.contains(name) {
            at.push(name.clone());
            rest = &rest[1..];
            continue;
        }
        if let Some(import) = module.imports.iter().find(|import| import.name == *name && import.path.first() != Some(name)) {
            let mut onward = import.path.clone();
            onward.extend(rest[1..].iter().cloned());
            return resolve(modules, &at, &onward, depth + 1);
        }
        if module.imports.iter().any(|import| import.name == *name) {
            // `use name::..` of another crate, or `use child::{self}`.
            return None;
        }
        for import in module.imports.iter().filter(|import| import.name == "*") {
            let mut onward = import.path[..import.path.len() - 1].to_vec();
            onward.extend(rest.iter().cloned());
            if let Some(found) = resolve(modules, &at, &onward, depth + 1) {
                return Some(found);
            }
        }
        return Some((at, false));
    }
    Some((at, true))
}

/// Which module uses items of which, and by which path first.
fn imports(modules: &BTreeMap<ModulePath, Module>) -> Imports {
    let mut graph = BTreeMap::new();
    for (at, module) in modules {
        let mut targets: BTreeMap<ModulePath, String> = BTreeMap::new();
        // A re-export alone uses nothing; what is used by its new name is among the paths.
        let private = module.imports.iter().filter(|import| !import.public).map(|import| &import.path);
        for path in private.chain(&module.paths) {
            // The import of a whole module is none of its items; those that are used are among the paths.
            if let Some((target, false)) = resolve(modules, at, path, 0)
                && target != *at
            {
                targets.entry(target).or_insert_with(|| path.join("::"));
            }
        }
        graph.insert(at.clone(), targets);
    }
    graph
}
