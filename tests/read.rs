//! `scatter-ring read`: every pair of formats, byte by byte.

mod tables;

use scatter_ring::client::Client;
use scatter_ring::region::Rights;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tables::{NUMBERS, Place, ROW_BYTES, ROWS, all_formats, expected, lines, npy, pattern, rows_of, safetensors, text};

/// The same rows in every format of tables, and the header of an output with them.
const TABLES: [(&str, &str); 4] = [
    ("--table table.bin --row-bytes 24", "{'descr':'|u1','fortran_order':False,'shape':(9,24,),}"),
    ("--table with-header.bin --row-bytes 24 --offset 7", "{'descr':'|u1','fortran_order':False,'shape':(9,24,),}"),
    ("--table table.npy", "{'descr':'<f4','fortran_order':False,'shape':(9,2,3,),}"),
    ("--table table.safetensors", "{'descr':'<f4','fortran_order':False,'shape':(9,6,),}"),
];

/// The header's text without blanks, and the data.
fn parse_npy(file: &[u8]) -> (String, Vec<u8>) {
    assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    assert!(end.is_multiple_of(16) && file[end - 1] == b'\n');
    (text(&file[10..end]).replace([' ', '\n'], ""), file[end..].to_vec())
}

#[test]
fn every_table_goes_with_every_list_and_every_output() {
    let place = all_formats();
    let lists = ["rows.txt", "rows.npy", "rows.u32 --rows-format u32", "rows.u64 --rows-format u64"];
    for (table, header) in TABLES {
        for list in lists {
            place.reads(&format!("{table} --rows {list} --out out.bin"));
            assert_eq!(place.bytes("out.bin"), expected(), "{table} {list}");
            place.reads(&format!("{table} --rows {list} --out out.npy"));
            assert_eq!(parse_npy(&place.bytes("out.npy")), (header.to_owned(), expected()), "{table} {list}");
        }
    }
}

#[test]
fn row_numbers_are_integers_of_any_numpy_type() {
    let place = all_formats();
    let table = npy("'|u1'", "(300, 4)", false, &pattern(1200));
    place.put("small.npy", &table);
    let numbers = [5u8, 127, 0, 127];
    let wide = |width: usize, big: bool| -> Vec<u8> {
        let one = |n: &u8| {
            let mut bytes = vec![0; width];
            bytes[if big { width - 1 } else { 0 }] = *n;
            bytes
        };
        numbers.iter().flat_map(one).collect()
    };
    for kind in ["i", "u"] {
        for (order, width) in [("|", 1), ("<", 2), (">", 2), ("<", 4), (">", 4), ("<", 8), (">", 8)] {
            let descr = format!("'{order}{kind}{width}'");
            place.put("typed.npy", npy(&descr, "(4,)", false, &wide(width, order == ">")));
            place.reads("--table small.npy --rows typed.npy --out out.bin");
            let want = rows_of(&pattern(1200), &[5, 127, 0, 127], 4);
            assert_eq!(place.bytes("out.bin"), want, "{descr}");
        }
    }
}

#[test]
fn an_output_of_many_windows_is_complete_and_in_order() {
    let place = all_formats();
    // 41 rows a window of 1,000 bytes, and one row a window where a row is longer than it; the last window is not full.
    let numbers: Vec<u64> = (0..ROWS as u64 * 5).map(|i| i * i % ROWS as u64).collect();
    place.put("many.txt", lines(&numbers));
    let want = rows_of(&pattern(ROWS * ROW_BYTES), &numbers, ROW_BYTES);
    for (window, operations) in [(1000, 5000_u64.div_ceil(41)), (1, 5000), (1 << 26, 1)] {
        let args = format!("--table table.npy --rows many.txt --out out.npy --json --window-bytes {window}");
        let output = place.read(&args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let record: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(record["operations"].as_u64(), Some(operations));
        assert_eq!(parse_npy(&place.bytes("out.npy")).1, want, "windows of {window} bytes");
    }
}

#[test]
fn a_window_of_more_than_a_mebibyte_is_complete() {
    let place = all_formats();
    let numbers: Vec<u64> = (0..300_000).map(|i| i * 7 % ROWS as u64).collect();
    place.put("many.u32", numbers.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect::<Vec<u8>>());
    place.reads("--table table.npy --rows many.u32 --rows-format u32 --out out.bin");
    let want = rows_of(&pattern(ROWS * ROW_BYTES), &numbers, ROW_BYTES);
    assert!(place.bytes("out.bin") == want);
}

#[test]
fn json_has_the_keys_of_the_bench_and_people_get_a_line() {
    let place = all_formats();
    let output = place.read("--table table.npy --rows rows.txt --out out.bin --json").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let want = "bytes chosen doorbells engine_us fragments link operations row_bytes table_bytes table_rows total_us \
                useful_gbps";
    assert_eq!(keys, want.split(' ').collect::<Vec<_>>());
    let numbers = ["fragments", "bytes", "row_bytes", "table_rows", "table_bytes"].map(|key| record[key].as_u64());
    assert_eq!(numbers, [9, 216, 24, 1000, 24_000].map(Some));
    assert_eq!((record["link"].as_str(), record["chosen"].as_str()), (Some("local"), Some("direct")));
    assert!(record["engine_us"].as_f64().unwrap() > 0.0);

    let said = place.reads("--table table.npy --rows rows.txt --out out.bin");
    assert!(said.starts_with("scatter-ring: 9 rows of 24 B, 216 B in ") && said.lines().count() == 1, "{said}");
    let help = place.read("--help").output().unwrap();
    assert!(text(&help.stdout).contains("Examples:") && !text(&help.stdout).contains("window"));
}

#[test]
fn standard_input_and_output_are_files_too() {
    let place = all_formats();
    let mut child = place
        .read("--table table.npy --rows - --out - --json")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"7 999\t0\n 7 500\n\n499 0 7 998").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, expected());
    let record: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(record["fragments"].as_u64(), Some(9));
}

#[test]
fn no_row_numbers_give_an_empty_output() {
    let place = all_formats();
    place.put("none.txt", " \n");
    place.reads("--table table.npy --rows none.txt --out out.bin");
    assert!(place.bytes("out.bin").is_empty());
    place.reads("--table table.npy --rows none.txt --out out.npy");
    let header = "{'descr':'<f4','fortran_order':False,'shape':(0,2,3,),}";
    assert_eq!(parse_npy(&place.bytes("out.npy")), (header.to_owned(), Vec::new()));
}

#[test]
fn types_that_numpy_has_not_are_written_as_their_bytes_and_named() {
    let place = all_formats();
    let data = pattern(64);
    for (dtype, shape, descr, out_shape) in
        [("BF16", "[8,4]", "<u2", "(9,4,)"), ("F8_E4M3", "[8,8]", "|u1", "(9,8,)"), ("F4", "[8,16]", "|u1", "(9,8,)")]
    {
        place.put("odd.safetensors", safetensors(&[("w", dtype, shape, &data)]));
        place.put("odd.txt", "7 0 7 1 2 3 4 5 6");
        let said = place.reads("--table odd.safetensors --rows odd.txt --out out.npy");
        assert!(said.contains(&format!("NumPy has no {dtype}: the same bytes are written as '{descr}'")), "{said}");
        let header = format!("{{'descr':'{descr}','fortran_order':False,'shape':{out_shape},}}");
        let want = rows_of(&data, &[7, 0, 7, 1, 2, 3, 4, 5, 6], 8);
        assert_eq!(parse_npy(&place.bytes("out.npy")), (header, want), "{dtype}");
        let said = place.reads("--table odd.safetensors --rows odd.txt --out out.bin");
        assert!(!said.contains("NumPy"), "{said}");
    }
}

#[test]
fn a_table_with_one_dimension_has_rows_of_one_element_and_records_are_elements() {
    let place = all_formats();
    place.put("line.npy", npy("'>i2'", "(1000,)", false, &pattern(2000)));
    place.put("records.npy", npy("[('a', '<i4'), ('b', '<f8')]", "(1000,)", false, &pattern(12_000)));
    for (table, descr, row_bytes) in [("line.npy", "'>i2'", 2), ("records.npy", "[('a','<i4'),('b','<f8'),]", 12)] {
        place.reads(&format!("--table {table} --rows rows.txt --out out.npy"));
        let (header, data) = parse_npy(&place.bytes("out.npy"));
        assert_eq!(header, format!("{{'descr':{descr},'fortran_order':False,'shape':(9,),}}"));
        assert_eq!(data, rows_of(&pattern(1000 * row_bytes), &NUMBERS, row_bytes));
    }
}

#[test]
fn an_output_is_replaced_as_a_whole_or_not_at_all() {
    let place = all_formats();
    place.put("old.bin", "precious");
    std::os::unix::fs::symlink("old.bin", place.path("link.bin")).unwrap();
    place.put("bad.txt", "7 1000");
    let failed = place.read("--table table.npy --rows bad.txt --out old.bin").status().unwrap();
    assert!(!failed.success());
    assert_eq!(place.bytes("old.bin"), b"precious");
    place.reads("--table table.npy --rows rows.txt --out link.bin");
    assert!(place.path("link.bin").symlink_metadata().unwrap().is_symlink(), "the link itself was replaced");
    assert_eq!(place.bytes("old.bin"), expected());
    // As any file that somebody makes, and not for its owner alone.
    place.put("plain", "");
    let mode = |name: &str| place.path(name).metadata().unwrap().permissions().mode();
    assert_eq!(mode("old.bin"), mode("plain"));
    place.fails("--table table.npy --rows rows.txt --out nowhere/out.bin", 1, &["creating nowhere/out.bin"]);
    // A table may be its own output.
    place.reads("--table table.bin --row-bytes 24 --rows rows.txt --out table.bin");
    assert_eq!(place.bytes("table.bin"), expected());
}

#[test]
fn a_run_that_is_stopped_leaves_nothing() {
    let place = all_formats();
    let numbers: Vec<u64> = (0..200_000).map(|i| i % ROWS as u64).collect();
    place.put("many.txt", lines(&numbers));
    for signal in ["TERM", "INT"] {
        // A window a row, so that it takes a while.
        let args = "--table table.npy --rows many.txt --out out.bin --window-bytes 1";
        let mut child = place.read(args).stderr(Stdio::null()).spawn().unwrap();
        let part = || {
            std::fs::read_dir(place.0.path()).unwrap().any(|e| e.unwrap().path().to_str().unwrap().ends_with(".part"))
        };
        while !part() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let pid = child.id();
        assert!(Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap().success());
        assert!(!child.wait().unwrap().success());
        place.has_no_output(signal);
    }
}

#[test]
fn an_output_that_is_no_file_is_written_and_stays_what_it_is() {
    // A pipe of the test's own: root could replace a device for the whole machine.
    let place = all_formats();
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let mut child = place.read("--table table.npy --rows rows.txt --out pipe").stderr(Stdio::null()).spawn().unwrap();
    let pipe = place.path("pipe");
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    assert!(child.wait().unwrap().success());
    assert!(!place.path("pipe").metadata().unwrap().is_file());
    assert_eq!(reader.join().unwrap(), expected());
}

#[test]
fn an_output_that_does_not_fit_leaves_nothing() {
    let place = all_formats();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = place.read("--table table.npy --rows rows.txt --out -").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("writing -: No space left"), "{}", text(&output.stderr));

    // More than the limit, in windows that are less: what the engine shares is limited too.
    place.put("many.txt", lines(&[7; 200_000]));
    let read = place.read("--table table.npy --rows many.txt --out out.bin --window-bytes 65536");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2048; exec \"$@\"", "sh"]).arg(read.get_program()).args(read.get_args());
    assert!(!limited.current_dir(place.0.path()).stderr(Stdio::null()).status().unwrap().success());
    place.has_no_output("a file size limit");
}

/// `scatter-ring serve`, killed at the end of a test.
struct Engine {
    child: Child,
    socket: PathBuf,
}

impl Engine {
    fn start(place: &Place) -> Engine {
        std::fs::set_permissions(place.0.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let socket = place.path("socket");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
        serve.args(["serve", "--socket"]).arg(&socket).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = serve.spawn().unwrap();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        Engine { child, socket }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_engine_that_runs_already_reads_files_and_exports() {
    let place = all_formats();
    let engine = Engine::start(&place);
    for (table, header) in TABLES {
        place.reads(&format!("--attach socket {table} --rows rows.npy --out out.npy --window-bytes 100"));
        assert_eq!(parse_npy(&place.bytes("out.npy")), (header.to_owned(), expected()), "{table}");
    }
    std::fs::remove_file(place.path("out.npy")).unwrap();

    let owner = Client::attach(&engine.socket).unwrap();
    let data = [vec![9; 8], pattern(ROWS * ROW_BYTES)].concat();
    let region = owner.allocate(data.len() as u64).unwrap();
    region.write_at(0, &data).unwrap();
    owner.export(&region, "rows", Rights::READ).unwrap();
    let args = "--attach socket --export rows --rows rows.txt --out out.bin";
    place.fails(args, 2, &["export rows has no header", "give --row-bytes"]);
    place.fails(&format!("{args} --row-bytes 7"), 1, &["export rows: 24008 bytes"]);
    place.fails(&args.replace("export rows", "export others"), 1, &["others"]);
    let output = place.read(&format!("{args} --row-bytes 24 --offset 8 --json")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((record["link"].as_str(), record["table_rows"].as_u64()), (Some("shm"), Some(1000)));
    assert_eq!(place.bytes("out.bin"), expected());
}
