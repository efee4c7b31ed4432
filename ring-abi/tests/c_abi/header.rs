//! The text of `include/scatter_ring_abi.h`.

use super::docs::{Names, comment, lines};
use super::functions::{FUNCTIONS, texts};
use super::items::{Constant, Structure, constants, structures};
use super::sources::{Found, What, found};
use super::{c_constant, c_name};
use std::fmt::Write;

/// Goes on with the sentence that the crate starts with.
const ABOUT: &str = "For C11 and C++17. Made from the Rust crate ring-abi by its test `c_header`, which fails when the two differ. Not to be
edited.

This header alone is enough to write a producer: examples/c/producer.c is one. For C++ scatter_ring.hpp has one that does
more. Constants are macros; the type that they have in structures stands next to the name of their group.
";

const OPENING: &str = "\
#ifndef SCATTER_RING_ABI_H
#define SCATTER_RING_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && defined(__ORDER_LITTLE_ENDIAN__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error \"scatter-ring runs on little-endian machines\"
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \"-Wold-style-cast\"
#endif

#ifdef __cplusplus
#define SCATTER_RING_ASSERT(condition) static_assert(condition, #condition)
#define SCATTER_RING_ALIGNOF alignof
#else
#define SCATTER_RING_ASSERT(condition) _Static_assert(condition, #condition)
#define SCATTER_RING_ALIGNOF _Alignof
#endif
";

const CLOSING: &str = "
#undef SCATTER_RING_ASSERT
#undef SCATTER_RING_ALIGNOF

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif
";

pub fn header() -> String {
    let header = Header { found: found(), constants: constants(), structures: structures(), names: Names::new() };
    let names = header.names();
    Header { names, ..header }.text()
}

struct Header {
    found: Vec<Found>,
    constants: Vec<Constant>,
    structures: Vec<Structure>,
    names: Names,
}

impl Header {
    /// What links in the documentation may name.
    fn names(&self) -> Names {
        let name = |found: &Found| match found.what {
            What::Constant => c_constant(&found.path),
            What::Structure => c_name(&found.path),
            What::Code | What::Module => format!("{}_*", c_constant(found.path.trim_start_matches("mod "))),
            What::Function => format!("{}()", c_name(&found.path)),
            What::Field => {
                let (structure, field) = found.path.rsplit_once("::").unwrap();
                format!("{}.{field}", c_name(structure))
            }
            What::Alias => String::new(),
        };
        self.found.iter().map(|found| (found.path.trim_start_matches("mod ").to_owned(), name(found))).collect()
    }

    fn text(&self) -> String {
        let mut out = self.about() + OPENING;
        for found in &self.found {
            match found.what {
                What::Module => self.module(found, &mut out),
                What::Code => self.group(found, &mut out),
                What::Structure => self.structure(found, &mut out),
                What::Constant if !self.is_grouped(found) => self.constant(found, &mut out),
                What::Constant | What::Field | What::Function | What::Alias => {}
            }
        }
        self.functions(&mut out);
        out + CLOSING
    }

    /// What stands before everything: the documentation of the crate, of the messages and of owner sessions.
    fn about(&self) -> String {
        let text = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (first, rest) = self.module_docs("").split_first().unwrap();
        let mut docs = text(&format!("@file\n\n@brief {first}\n{ABOUT}"));
        docs.extend(rest.iter().take_while(|line| *line != "# This crate").cloned());
        for (title, module) in [("# Messages", "message"), ("# Owner sessions", "staged")] {
            docs.extend(text(&format!("\n{title}\n\n")));
            docs.extend_from_slice(self.module_docs(module));
        }
        comment(&docs, &self.names, 0)
    }

    fn module_docs(&self, module: &str) -> &[String] {
        let path = format!("mod {module}");
        &self.found.iter().find(|found| found.path == path).unwrap().docs
    }

    /// A headline for a file; a group for a module inside of one.
    fn module(&self, found: &Found, out: &mut String) {
        let (name, first) = (found.path.trim_start_matches("mod "), found.docs.first().map_or("", String::as_str));
        if self.has_group(name) {
            self.group(found, out);
        } else if name.is_empty() {
            headline("The version, and limits.", out);
        } else {
            headline(&lines(&[first.to_owned()], &self.names, usize::MAX).concat(), out);
        }
    }

    /// A type that is a number, or a module of numbers.
    fn group(&self, found: &Found, out: &mut String) {
        let path = found.path.trim_start_matches("mod ");
        let members: Vec<&Found> = self.found.iter().filter(|found| is_in(&found.path, path)).collect();
        let constants: Vec<&Constant> = members.iter().filter_map(|found| self.value(found)).collect();
        let Some(first) = constants.first() else { return };
        writeln!(out, "\n/**\n * @name {}_*: {}", c_constant(path), first.c_type).unwrap();
        for line in lines(&found.docs, &self.names, 116) {
            writeln!(out, "{}", format!(" * {line}").trim_end()).unwrap();
        }
        *out += " * @{\n */\n";
        for member in members {
            self.constant(member, out);
        }
        *out += "/** @} */\n";
    }

    fn has_group(&self, module: &str) -> bool {
        // Those with nothing but numbers, and functions of them.
        ["submit", "complete", "rights"].contains(&module)
    }

    fn is_grouped(&self, found: &Found) -> bool {
        let Some((of, _)) = found.path.rsplit_once("::") else { return false };
        self.has_group(of) || self.found.iter().any(|found| found.what == What::Code && found.path == of)
    }

    fn value(&self, found: &Found) -> Option<&Constant> {
        self.constants.iter().find(|constant| found.what == What::Constant && constant.path == found.path)
    }

    fn constant(&self, found: &Found, out: &mut String) {
        let Some(constant) = self.value(found) else { return };
        if !self.is_grouped(found) {
            *out += "\n";
        }
        *out += &comment(&found.docs, &self.names, 0);
        writeln!(out, "#define {} {}", c_constant(&found.path), literal(constant)).unwrap();
    }

    fn structure(&self, found: &Found, out: &mut String) {
        let Some(structure) = self.structures.iter().find(|structure| structure.name == found.path) else { return };
        let name = c_name(&found.path);
        write!(out, "\n{}typedef struct {name} {{\n", comment(&found.docs, &self.names, 0)).unwrap();
        for member in &structure.members {
            let path = format!("{}::{}", found.path, member.name);
            let docs =
                self.found.iter().find(|found| found.path == path).map_or(vec!["0.".to_owned()], |f| f.docs.clone());
            let array = member.array.map_or(String::new(), |n| format!("[{n}]"));
            *out += &comment(&docs, &self.names, 4);
            writeln!(out, "    {} {}{array};", member.c_type, member.name).unwrap();
        }
        writeln!(out, "}} {name};").unwrap();
        let (bytes, align) = (structure.bytes, structure.align);
        writeln!(out, "SCATTER_RING_ASSERT(sizeof({name}) == {bytes});").unwrap();
        writeln!(out, "SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF({name}) == {align});").unwrap();
        for member in &structure.members {
            writeln!(out, "SCATTER_RING_ASSERT(offsetof({name}, {}) == {});", member.name, member.offset).unwrap();
        }
    }

    fn functions(&self, out: &mut String) {
        headline("Functions.", out);
        let docs = |path: &str| {
            let found = self.found.iter().find(|found| found.what == What::Function && found.path == path);
            found.unwrap_or_else(|| panic!("no function {path}")).docs.clone()
        };
        for function in FUNCTIONS {
            let mut docs = docs(function.path);
            if !function.note.is_empty() {
                docs.extend([String::new(), function.note.to_owned()]);
            }
            write!(out, "\n{}static inline {}\n", comment(&docs, &self.names, 0), function.text).unwrap();
        }
        for texts in texts(&self.constants) {
            let mut docs = docs(texts.path);
            docs.extend([String::new(), format!("{} for a number that this version does not know.", texts.otherwise)]);
            write!(out, "\n{}static inline {}\n", comment(&docs, &self.names, 0), texts.c()).unwrap();
        }
    }
}

fn headline(text: &str, out: &mut String) {
    write!(out, "\n/* ---- {} ---- */\n", text.trim_end_matches('.')).unwrap();
}

fn is_in(path: &str, of: &str) -> bool {
    path.rsplit_once("::").is_some_and(|(prefix, _)| prefix == of)
}

fn literal(constant: &Constant) -> String {
    let (value, is_bits) = (constant.value, constant.is_bits);
    let digits = if is_bits { format!("{value:#X}").replace("0X", "0x") } else { value.to_string() };
    match constant.c_type {
        "uint64_t" => format!("UINT64_C({digits})"),
        "int32_t" if value < 0 => format!("({digits})"),
        "int32_t" => digits,
        _ => format!("{digits}u"),
    }
}
