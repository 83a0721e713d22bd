//! Imports go downwards only, and `unsafe` stays in the folders that may have it.

use std::fs;
use std::path::Path;

/// Lowest first; a layer may use itself and what stands before it.
const LAYERS: [&str; 8] = [
    "base",
    "observe",
    "backend",
    "alloc",
    "config",
    "pool",
    "lifecycle",
    "ffi",
];
/// The concrete backends: only `lifecycle` creates them.
const CONCRETE: [&str; 5] = ["host", "cuda", "fault", "counting", "nvtx"];
const UNSAFE_LAYERS: [&str; 2] = ["backend", "ffi"];

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|known| *known == layer)
}

/// The source without comments, strings and test modules, which end every file that has one. Tests may look
/// anywhere: each tier is tested with the real thing below it or a stand-in.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let source = source.split("#[cfg(all(test").next().unwrap();
    let mut code = String::new();
    let mut rest = source.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => {
                rest.by_ref().find(|c| *c == '\n');
                code.push('\n');
            }
            '/' if rest.peek() == Some(&'*') => {
                let mut last = ' ';
                rest.by_ref()
                    .find(|c| std::mem::replace(&mut last, *c) == '*' && *c == '/');
            }
            '"' => {
                while let Some(c) = rest.next() {
                    match c {
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                code.push_str("\"\"");
            }
            '\'' => {
                // A character, or else a lifetime.
                let mut ahead = rest.clone();
                let escaped = ahead.next() == Some('\\');
                if escaped || ahead.next() == Some('\'') {
                    if escaped {
                        rest.nth(1);
                    }
                    rest.by_ref().find(|c| *c == '\'');
                }
                code.push(' ');
            }
            c => code.push(c),
        }
    }
    code
}

/// Every path below `prefix` that the code names, `use` trees with braces included: `a::{b, c::d}` gives
/// `a::b` and `a::c::d`.
fn paths(code: &str, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let before = code[..at].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            tree(
                &mut code[at + prefix.len()..].chars().peekable(),
                String::new(),
                &mut found,
            );
        }
    }
    found
}

fn tree(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, base: String, found: &mut Vec<String>) {
    let mut path = base;
    loop {
        while rest.peek().is_some_and(|c| c.is_whitespace()) {
            rest.next();
        }
        if rest.peek() == Some(&'{') {
            rest.next();
            loop {
                tree(rest, path.clone(), found);
                while rest.peek().is_some_and(|c| c.is_whitespace()) {
                    rest.next();
                }
                match rest.next() {
                    Some(',') => {}
                    _ => return,
                }
            }
        }
        let mut name = String::new();
        while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || *c == '_') {
            name.push(c);
        }
        if name.is_empty() {
            // `a::*` is as good as `a`.
            rest.next_if(|c| *c == '*');
            found.extend((!path.is_empty()).then_some(path));
            return;
        }
        path = if path.is_empty() {
            name
        } else {
            format!("{path}::{name}")
        };
        let mut ahead = rest.clone();
        while ahead.peek().is_some_and(|c| c.is_whitespace()) {
            ahead.next();
        }
        match (ahead.next(), ahead.next()) {
            (Some(':'), Some(':')) => *rest = ahead,
            end => {
                if end == (Some('a'), Some('s')) {
                    // `as name` says nothing new.
                    while rest.next_if(|c| !matches!(c, ',' | '}' | ';')).is_some() {}
                }
                found.push(path);
                return;
            }
        }
    }
}

/// What is wrong with a file, `path` being relative to `src`.
fn faults(path: &str, source: &str) -> Vec<String> {
    let layer = path.split('/').next().unwrap().trim_end_matches(".rs");
    let Some(own) = rank(layer) else {
        return if layer == "lib" {
            Vec::new()
        } else {
            vec![format!("{path}: {layer} is no layer")]
        };
    };
    let code = code(source);
    let mut faults = Vec::new();
    // A layer names another one through `crate::`, or through `super` as often as the file is deep.
    let above = "super::".repeat(path.split('/').filter(|part| *part != "mod.rs").count());
    let mut named = paths(&code, "crate::");
    if let Some(name) = named
        .iter()
        .find(|name| rank(name.split("::").next().unwrap()).is_none())
    {
        faults.push(format!("{path}: {name} is in no layer"));
    }
    named.extend(paths(&code, &above));
    for name in named {
        let mut parts = name.split("::");
        let target = parts.next().unwrap();
        match rank(target) {
            Some(rank) if rank > own => {
                faults.push(format!("{path}: {layer} uses {target}, which is above it"))
            }
            Some(_)
                if target == "backend"
                    && !["backend", "lifecycle"].contains(&layer)
                    && parts.next().is_some_and(|part| CONCRETE.contains(&part)) =>
            {
                faults.push(format!(
                    "{path}: {layer} uses {name}; only lifecycle may name a concrete backend"
                ));
            }
            _ => {}
        }
    }
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    if !UNSAFE_LAYERS.contains(&layer) && words.into_iter().any(|word| word == "unsafe") {
        faults.push(format!("{path}: unsafe outside of {UNSAFE_LAYERS:?}"));
    }
    faults
}

fn visit(folder: &Path, root: &Path, seen: &mut usize, faulty: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, root, seen, faulty);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *seen += 1;
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            faulty.extend(faults(name, &fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn imports_go_down_and_unsafe_stays_where_it_may_be() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut seen, mut faulty) = (0, Vec::new());
    visit(&root, &root, &mut seen, &mut faulty);
    assert!(seen > 20, "only {seen} files seen");
    assert!(faulty.is_empty(), "{}", faulty.join("\n"));
}

#[test]
fn planted_faults_are_caught() {
    let caught = |path: &str, source: &str| assert_eq!(faults(path, source).len(), 1, "{path}: {source}");
    caught("base/units.rs", "use crate::pool::Pool;");
    caught("alloc/heap.rs", "use crate::{base::lock, pool::Pool};");
    caught(
        "alloc/heap.rs",
        "use crate::{\n    base::{lock, units::Addr},\n    config::Config,\n};",
    );
    caught(
        "observe/stats.rs",
        "fn f() { crate::backend::host::streams::create(); }",
    );
    caught(
        "alloc/arena/mod.rs",
        "use crate::backend::{Backend, host::HostBackend};",
    );
    caught("pool.rs", "use crate::backend::host;");
    caught("pool.rs", "use super::lifecycle::registry;");
    caught("alloc/heap.rs", "use super::super::pool::Pool;");
    caught("config.rs", "use crate::nowhere::Thing;");
    caught("somewhere/new.rs", "");
    caught("pool.rs", "fn f() { unsafe { g() } }");
    caught("lifecycle/end.rs", "let c = '\"'; unsafe { g() }; let d = '\"';");
}

#[test]
fn what_is_allowed_is_not_caught() {
    let fine = |path: &str, source: &str| assert_eq!(faults(path, source), Vec::<String>::new());
    fine(
        "pool.rs",
        "use crate::backend::{Backend, Event};\nuse crate::base::units::{self, Addr};",
    );
    fine("lifecycle/order.rs", "use crate::backend::host;\nuse super::end;");
    fine("ffi/pool.rs", "use crate::pool::Pool; unsafe fn f() {}");
    fine(
        "base/lock.rs",
        "// use crate::pool::Pool, unsafe\n/* unsafe */ const S: &str = \"crate::pool \\\" unsafe\";",
    );
    fine(
        "alloc/heap.rs",
        "fn f<'a>(x: &'a u8) -> char { 'u' }\nmod tests {}",
    );
    fine(
        "alloc/heap.rs",
        "fn f() {}\n#[cfg(test)]\nmod tests { use crate::backend::host; }",
    );
    fine(
        "alloc/heap.rs",
        "pub(crate) fn f() {} use super::page::Page as P;",
    );
}
