//! A C program says what the header says to a C compiler: every size, place, value and text is Rust's, and every function
//! gives what Rust's gives.

mod c_abi;

use c_abi::compiler::{compiler, run};
use c_abi::functions::FUNCTIONS;
use c_abi::items::{Member, Structure, constants, structures};
use c_abi::{c_constant, c_name, header};
use ring_abi::*;
use std::fmt::Write;

/// A C expression, the function of the program that prints it, and what it must print.
struct Line {
    expression: String,
    print: &'static str,
    expected: String,
}

fn line(print: &'static str, expression: String, expected: impl ToString) -> Line {
    Line { expression, print, expected: expected.to_string() }
}

fn number(expression: String, expected: impl TryInto<i128>) -> Line {
    let expected: i128 = expected.try_into().unwrap_or_else(|_| panic!("{expression}"));
    line(if expected < 0 { "negative" } else { "number" }, expression, expected)
}

fn truth(expression: String, expected: bool) -> Line {
    number(expression, u8::from(expected))
}

fn text(expression: String, expected: Option<&str>) -> Line {
    line("text", expression, expected.unwrap_or("(none)"))
}

/// What the program starts with.
const START: &str = r#"
#include "scatter_ring_abi.h"
#include <stdio.h>

#define number(n) printf("%llu\n", (unsigned long long)(n))
#define negative(n) printf("%lld\n", (long long)(n))
#define text(s) ((s) != NULL ? puts(s) : puts("(none)"))

static void bytes(const void *first, size_t n) {
    const unsigned char *byte = (const unsigned char *)first;
    for (size_t i = 0; i < n; i++) {
        printf("%02x", byte[i]);
    }
    printf("\n");
}

static void stop_reason(uint64_t word) {
    int32_t reason = 12345;
    bool ended = scatter_ring_stop_reason(word, &reason);
    printf("%d %d\n", ended, (int)reason);
}

static void header_check(const void *of) {
    scatter_ring_header header;
    const char *field = NULL;
    memcpy(&header, of, sizeof header);
    int32_t status = scatter_ring_header_check(&header, &field);
    printf("%d %s\n", (int)status, field != NULL ? field : "(none)");
}

static scatter_ring_span span_of(const void *of) {
    scatter_ring_span span;
    memcpy(&span, of, sizeof span);
    return span;
}

int main(void) {
"#;

fn program(lines: &[Line]) -> String {
    let mut program = START.to_owned();
    for structure in structures() {
        let name = c_name(structure.name);
        writeln!(program, "    {name} sample_{name};\n    memset(&sample_{name}, 0xEE, sizeof sample_{name});")
            .unwrap();
        for member in &structure.members {
            for (index, value) in member.values.iter().enumerate() {
                let place = element(member, index);
                // What an int does not hold.
                let suffix = if *value > i128::from(i32::MAX) { "u" } else { "" };
                writeln!(program, "    sample_{name}.{place} = {value}{suffix};").unwrap();
            }
        }
    }
    for Line { expression, print, .. } in lines {
        writeln!(program, "    {print}({expression});").unwrap();
    }
    program + "    return 0;\n}\n"
}

fn element(member: &Member, index: usize) -> String {
    member.array.map_or(member.name.to_owned(), |_| format!("{}[{index}]", member.name))
}

fn layout(structure: &Structure) -> Vec<Line> {
    let name = c_name(structure.name);
    let mut lines =
        vec![number(format!("sizeof({name})"), structure.bytes), number(format!("_Alignof({name})"), structure.align)];
    for member in &structure.members {
        lines.push(number(format!("offsetof({name}, {})", member.name), member.offset));
        lines.push(number(format!("sizeof(((const {name} *)0)->{})", member.name), member.bytes));
        // Whether a plain char is signed is the machine's choice.
        if member.c_type != "char" {
            let of = format!("__typeof__(((const {name} *)0)->{})", element(member, 0));
            lines.push(truth(format!("({of})-1 < ({of})1"), member.c_type.starts_with("int")));
        }
    }
    lines.push(line("bytes", format!("&sample_{name}, sizeof sample_{name}"), hex(&structure.sample)));
    lines
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes as an expression of C.
fn literal(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("(const unsigned char[]){{{}}}", bytes.join(", "))
}

fn texts() -> Vec<Line> {
    let mut lines = Vec::new();
    for n in -80..=5 {
        lines.push(text(format!("scatter_ring_status_name({n})"), Status(n).name()));
        lines.push(text(format!("scatter_ring_status_text({n})"), Some(Status(n).text())));
    }
    for n in 0..=u8::MAX {
        lines.push(text(format!("scatter_ring_opcode_name({n})"), Opcode(n).name()));
        lines.push(text(format!("scatter_ring_route_name({n})"), Route(n).name()));
        lines.push(text(format!("scatter_ring_stage_name({n})"), Stage(n).name()));
    }
    for n in (0..=160).chain([u32::MAX - 1, u32::MAX]) {
        lines.push(text(format!("scatter_ring_field_name({n}u)"), Field(n).name()));
    }
    lines
}

fn areas() -> Vec<Line> {
    let mut lines = Vec::new();
    for n in [0, 1, 2, 3, 4, 5, 8, 12, 64, 1 << 20, (1 << 20) + 1, 1 << 21, 1 << 31, u32::MAX] {
        lines.push(truth(format!("scatter_ring_header_is_capacity({n}u)"), Header::is_capacity(n)));
        lines.push(number(format!("scatter_ring_submit_bytes({n}u)"), submit::bytes(n)));
        lines.push(number(format!("scatter_ring_complete_bytes({n}u)"), complete::bytes(n)));
    }
    for reason in -80..=5 {
        let word = stop_word(Status(reason));
        lines.push(number(format!("scatter_ring_stop_word({reason})"), word));
        for word in [word, word & u64::from(u32::MAX)] {
            let expected = stop_reason(word).map_or("0 12345".to_owned(), |reason| format!("1 {}", reason.0));
            lines.push(line("stop_reason", format!("UINT64_C({word})"), expected));
        }
    }
    lines
}

/// A header that is right, and headers with one wrong byte.
fn headers() -> Vec<Line> {
    let right = Header::new(64, 128, Features(Features::KNOWN), 1, 7).to_words().map(u64::to_le_bytes).concat();
    let flips = [1, 2, 4, 8, 16, 32, 64, 128u8];
    let wrong = (0..right.len()).flat_map(|at| flips.map(|flip| (at, flip)));
    let headers = wrong.map(|(at, flip)| {
        let mut header = right.clone();
        header[at] ^= flip;
        header
    });
    let lines = headers.chain([right.clone()]).map(|header| {
        let words = std::array::from_fn(|i| u64::from_le_bytes(header[8 * i..][..8].try_into().unwrap()));
        let expected = match Header::from_words(&words).check() {
            Ok(()) => "0 (none)".to_owned(),
            Err((status, field)) => format!("{} {field}", status.0),
        };
        line("header_check", literal(&header), expected)
    });
    lines.collect()
}

fn messages() -> Vec<Line> {
    let word = abi_word();
    let mut lines = vec![number("scatter_ring_abi_word()".to_owned(), word)];
    for word in (0..64).map(|bit| word ^ 1 << bit).chain([word]) {
        lines.push(truth(format!("scatter_ring_abi_matches(UINT64_C({word}))"), abi_matches(word)));
    }
    let hello = Message::hello(Features(0x1122_3344_5566_7788), 0x99AA_BBCC, 0xDDEE_FF01, 0x0203_0405_0607_0809);
    let call = "(scatter_ring_message[]){scatter_ring_message_hello(UINT64_C(0x1122334455667788), 0x99AABBCCu,
            0xDDEEFF01u, UINT64_C(0x0203040506070809))}, sizeof(scatter_ring_message)";
    lines.push(line("bytes", call.to_owned(), hex(&hello.to_bytes())));
    lines
}

fn descriptors() -> Vec<Line> {
    let mut lines = Vec::new();
    for handle in [0, 1, 0xFFF, 0x1000, 0x1001, 0xFFFF_F000, 0x1234_5678, u32::MAX].map(Handle) {
        lines.push(number(format!("scatter_ring_handle_index({}u)", handle.0), handle.index()));
        lines.push(number(format!("scatter_ring_handle_generation({}u)", handle.0), handle.generation()));
    }
    let kinds = [IndexKind::None, IndexKind::U32, IndexKind::U64, IndexKind::Fragments];
    for src in kinds {
        lines.push(number(format!("scatter_ring_index_kind_entry_bytes({})", src as u8), src.entry_bytes()));
        for dst in kinds {
            let call = format!("scatter_ring_index_kind_pack({}, {})", src as u8, dst as u8);
            lines.push(number(call, IndexKind::pack(src, dst)));
        }
    }
    lines.push(number("scatter_ring_index_kind_entry_bytes(4)".to_owned(), 0));
    lines
}

fn spans() -> Vec<Line> {
    let structure = structures().into_iter().find(|structure| structure.name == "Span").unwrap();
    let mut lines = Vec::new();
    for flags in 0..16u16 {
        let mut bytes = structure.sample.clone();
        let at = std::mem::offset_of!(Span, flags);
        bytes[at..at + 2].copy_from_slice(&flags.to_le_bytes());
        let words = std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..][..8].try_into().unwrap()));
        let span = Span::from_entry(&words);
        let argument = format!("(const scatter_ring_span[]){{span_of({})}}", literal(&bytes));
        lines.push(number(format!("scatter_ring_span_fragment({argument})"), span.fragment()));
        lines.push(number(format!("scatter_ring_span_detail({argument})"), span.detail()));
        lines.push(truth(format!("scatter_ring_span_is_batch_done({argument})"), span.is_batch_done()));
        lines.push(truth(format!("scatter_ring_span_is_held({argument})"), span.is_held()));
        lines.push(truth(format!("scatter_ring_span_is_released({argument})"), span.is_released()));
    }
    lines
}

fn every_line() -> Vec<Line> {
    let values = constants().into_iter().map(|constant| number(c_constant(constant.path), constant.value));
    let layouts = structures().into_iter().flat_map(|structure| layout(&structure));
    let parts = [texts(), areas(), headers(), messages(), descriptors(), spans()];
    values.chain(layouts).chain(parts.into_iter().flatten()).collect()
}

#[test]
fn a_c_program_says_the_same_as_rust() {
    let Some(mut compiler) = compiler("cc", "c11") else { return };
    let lines = every_line();
    let folder = tempfile::tempdir().unwrap();
    let (file, binary) = (folder.path().join("abi.c"), folder.path().join("abi"));
    std::fs::write(&file, program(&lines)).unwrap();
    run(compiler.arg("-o").arg(&binary).arg(&file));
    let printed = run(&mut std::process::Command::new(&binary));
    assert_eq!(printed.lines().count(), lines.len());
    let wrong: Vec<String> = lines
        .iter()
        .zip(printed.lines())
        .filter(|(line, printed)| line.expected != *printed)
        .map(|(line, printed)| format!("{} is {printed} in C and {} in Rust", line.expression, line.expected))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_function_of_the_header_is_called_by_that_program() {
    let program = program(&every_line());
    let functions = header::header();
    let names = functions.lines().filter_map(|line| line.strip_prefix("static inline ")?.split_once('('));
    let names: Vec<&str> = names.map(|(start, _)| start.rsplit([' ', '*']).next().unwrap()).collect();
    assert!(names.len() > FUNCTIONS.len(), "{names:?}");
    for name in names {
        assert!(program.contains(&format!("{name}(")), "{name} is not called");
    }
}

#[test]
fn the_header_compiles_alone_in_every_standard_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for (command, standard, ending) in
        [("cc", "c11", "c"), ("cc", "c17", "c"), ("c++", "c++17", "cpp"), ("c++", "c++20", "cpp")]
    {
        let file = folder.path().join(format!("alone.{ending}"));
        // Twice, as when two other headers include it.
        std::fs::write(&file, "#include \"scatter_ring_abi.h\"\n".repeat(2)).unwrap();
        let Some(mut compiler) = compiler(command, standard) else { continue };
        compiler.arg("-Wsign-conversion").arg("-fsyntax-only").arg(&file);
        if ending == "cpp" {
            compiler.arg("-Wold-style-cast");
        }
        run(&mut compiler);
    }
}
