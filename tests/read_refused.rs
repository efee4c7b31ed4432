//! What `scatter-ring read` says when something is wrong, and that nothing is written then.

mod tables;

use scatter_ring::client::{Client, Setup};
use scatter_ring::engine::{Config, Endpoint, Engine, Identity, PeerSettings, RunningEngine};
use std::os::unix::fs::PermissionsExt;
use tables::{Place, all_formats, npy, pattern, rows_of, safetensors};

#[test]
fn a_wrong_row_number_is_named_with_its_place() {
    let place = all_formats();
    let table = "--table table.npy --out out.bin --rows";
    place.put("bad.txt", "3 999 1000 4 1001");
    place.fails(
        &format!("{table} bad.txt"),
        1,
        &["row number 1000 at position 2", "table.npy has 1,000 rows, 0 to 999"],
    );
    place.put("bad.npy", npy("'<i4'", "(3,)", false, &[3i32, -2, 1].map(i32::to_le_bytes).concat()));
    place.fails(&format!("{table} bad.npy"), 1, &["bad.npy: row number -2 at position 1 is negative"]);
    place.put("bad.txt", "1 2 -3");
    place.fails(&format!("{table} bad.txt"), 1, &["'-3' at position 2 is not a row number"]);
    place.put("bad.txt", "99999999999999999999");
    place.fails(&format!("{table} bad.txt"), 1, &["'99999999999999999999' at position 0"]);
    place.put("bad.txt", u64::MAX.to_string());
    place.fails(&format!("{table} bad.txt"), 1, &["18446744073709551615 at position 0"]);
    // The table of another tensor lies behind this one: the number must not reach into it.
    place.put("bad.txt", "6");
    let tensors = safetensors(&[("a", "U8", "[6,4]", &pattern(24)), ("b", "U8", "[6,4]", &pattern(24))]);
    place.put("two.safetensors", tensors);
    let args = "--table two.safetensors --tensor a --out out.bin --rows bad.txt";
    place.fails(args, 1, &["row number 6 at position 0", "tensor a has 6 rows, 0 to 5"]);
}

#[test]
fn a_list_that_is_none_is_refused() {
    let place = all_formats();
    let table = "--table table.npy --out out.bin --rows";
    place.fails(&format!("{table} rows.u32 --rows-format u64"), 1, &["36 bytes are not a number of row numbers of 8"]);
    place.put("binary", [0xFF, 0xFE, 0x80]);
    place.fails(&format!("{table} binary"), 1, &["not text", "--rows-format u32 or u64"]);
    place.fails(&format!("{table} nowhere.txt"), 1, &["reading the row numbers nowhere.txt: No such file"]);
    place.fails(&format!("{table} table.npy"), 1, &["row numbers must be integers, and these are '<f4'"]);
    place.fails(&format!("{table} rows.txt --rows-format npy"), 1, &["not a .npy file"]);
    place.put("short.npy", npy("'<u2'", "(3,)", false, &[1, 0, 2, 0, 3]));
    place.fails(&format!("{table} short.npy"), 1, &["cut short at position 2"]);
    place.put("fortran.npy", npy("'<u2'", "(1, 2)", true, &[1, 0, 2, 0]));
    place.fails(&format!("{table} fortran.npy"), 1, &["Fortran order"]);
}

#[test]
fn a_table_that_does_not_fit_what_is_said_about_it_is_refused() {
    let place = all_formats();
    let rest = "--rows rows.txt --out out.bin";
    let raw = |args: &str| format!("--table table.bin {args} {rest}");
    place.fails(&raw(""), 2, &["table.bin has no header", "give --row-bytes"]);
    place.fails(&raw("--row-bytes 0"), 2, &["row-bytes"]);
    place.fails(&raw("--row-bytes 7"), 1, &["24000 bytes from offset 0 on", "rows of 7 bytes, 4 are left over"]);
    place.fails(&raw("--row-bytes 24001"), 1, &["24000 bytes: no row of 24001 bytes from offset 0"]);
    place.fails(&raw("--row-bytes 24 --offset 23999"), 1, &["no row of 24 bytes from offset 23999"]);
    place.fails(&raw("--row-bytes 24 --offset 99999999"), 1, &["no row of 24 bytes"]);
    place.fails(&raw("--row-bytes 24 --tensor x"), 2, &["--tensor is for .safetensors"]);
    place.fails(&format!("--table nowhere.bin --row-bytes 24 {rest}"), 1, &["nowhere.bin: No such file"]);
    place.fails(&format!("--table . --row-bytes 24 {rest}"), 1, &["not a regular file"]);
    place.fails(&format!("--table table.npy --row-bytes 23 {rest}"), 2, &["a row has 24 bytes"]);
    place.fails(&format!("--table table.npy --offset 8 {rest}"), 2, &["--offset is for raw tables"]);
    place.reads(&format!("--table table.npy --row-bytes 24 {rest}"));
}

#[test]
fn a_damaged_table_is_refused() {
    let place = all_formats();
    let refused = |name: &str, bytes: Vec<u8>, why: &str| {
        place.put(name, bytes);
        place.fails(&format!("--table {name} --rows rows.txt --out out.bin"), 1, &[why]);
    };
    let data = pattern(96);
    refused("t.npy", npy("'<f4'", "(25,)", false, &data), "cut short: its header promises 25 rows of 4 bytes");
    refused("t.npy", npy("'<f4'", "(6, 4)", true, &data), "numpy.ascontiguousarray");
    refused("t.npy", npy("'|O'", "(6,)", false, &data), "Python objects");
    refused("t.npy", npy("'<f4'", "()", false, &data), "has no rows");
    refused("t.npy", npy("'<f4'", "(0, 3)", false, &data), "has no rows");
    refused("t.npy", npy("'<f4'", "(3, 0)", false, &data), "1 byte to 4 GiB");
    refused("t.npy", npy("'<f4'", "(1, 4294967296)", false, &data), "1 byte to 4 GiB");
    let overflowing = npy("'<u4'", "(1099511627776, 1099511627776, 2)", false, &data);
    refused("t.npy", overflowing.clone(), "a shape of [1099511627776, ");
    place.put("overflowing.npy", overflowing);
    place.fails("--table table.npy --rows overflowing.npy --out out.bin", 1, &["a shape of [1099511627776, "]);
    refused("t.npy", b"nothing".to_vec(), "not a .npy file");
    refused("t.npy", Vec::new(), "not a .npy file");
    // A header that says that it is longer than the file, and one that is nested deeper than any stack.
    for len in [i32::MAX as u32, 60_000] {
        let nested = [&b"\x93NUMPY\x02\x00"[..], &len.to_le_bytes(), &[b'('; 60_000]].concat();
        refused("t.npy", nested, "not a .npy file");
        let said = place.read("--table t.npy --rows rows.txt --out out.bin").output().unwrap().stderr;
        assert!(said.len() < 200, "the header is repeated in {} bytes", said.len());
    }

    let whole = safetensors(&[("w", "F32", "[6,4]", &data)]);
    refused("t.safetensors", whole[..whole.len() - 1].to_vec(), "cut short: its header promises 6 rows of 16 bytes");
    refused("t.safetensors", whole[..30].to_vec(), "a header of");
    refused("t.safetensors", u64::MAX.to_le_bytes().to_vec(), "a header of 18446744073709551615 bytes");
    refused("t.safetensors", vec![1, 2, 3], "not a .safetensors file");
    refused("t.safetensors", safetensors(&[("w", "F32", "[6,5]", &data)]), "not a .safetensors file");
    // A type that the parser of headers would take hours for.
    refused("t.npy", npy(&"[".repeat(30), "(6,)", false, &data), "nested too deep");
    // Lengths that add up to an offset beyond all numbers, which would come round to the header.
    let most = (1u64 << 61) - 1;
    let part =
        |i| format!(r#""a{i}":{{"dtype":"U8","shape":[{most}],"data_offsets":[{},{}]}},"#, i * most, (i + 1) * most);
    let last = format!(r#""w":{{"dtype":"U8","shape":[1,4],"data_offsets":[{},{}]}}"#, 8 * most, 8 * most + 4);
    let header = format!("{{{}{last}}}", (0..8).map(part).collect::<String>());
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    place.put("t.safetensors", file);
    place.fails("--table t.safetensors --tensor w --rows rows.txt --out out.bin", 1, &["cut short"]);
}

#[test]
fn without_a_name_the_tensors_are_listed() {
    let place = all_formats();
    let data = pattern(96);
    let tensors =
        [("a.weight", "F32", "[6,4]", &data[..]), ("b.weight", "F16", "[12,4]", &data), ("c", "I8", "[96]", &data)];
    place.put("t.safetensors", safetensors(&tensors));
    let list = ["\n  a.weight  F32 [6, 4]", "\n  b.weight  F16 [12, 4]", "\n  c  I8 [96]"];
    let args = "--table t.safetensors --rows few.txt --out out.bin";
    place.fails(args, 2, &[&["2 tensors with two dimensions: give --tensor NAME"][..], &list].concat());
    place.fails(&format!("{args} --tensor d"), 2, &[&["no tensor d"][..], &list].concat());
    place.put("few.txt", "5 0");
    for (name, row_bytes) in [("a.weight", 16), ("b.weight", 8), ("c", 1)] {
        place.reads(&format!("{args} --tensor {name}"));
        assert_eq!(place.bytes("out.bin"), rows_of(&data, &[5, 0], row_bytes), "{name}");
    }
}

#[test]
fn what_contradicts_itself_is_refused_with_status_2() {
    let place = all_formats();
    place.fails("--rows rows.txt --out out.bin", 2, &["--table"]);
    place.fails("--table table.npy --export x --attach s --rows rows.txt --out out.bin", 2, &["cannot be used with"]);
    place.fails("--export x --row-bytes 24 --rows rows.txt --out out.bin", 2, &["--attach"]);
    let endpoint = endpoint();
    place.fails(&format!("--table table.npy --peer {endpoint} --rows rows.txt --out out.bin"), 2, &["--export"]);
    let at_peer = "--attach socket --export x --row-bytes 24 --rows rows.txt --out out.bin --peer";
    place.fails(&format!("{at_peer} {}", &endpoint[1..]), 2, &["--peer", "not an endpoint"]);
    let args = "--table table.npy --rows rows.txt --out out.bin";
    place.fails(&format!("{args} --attach nowhere"), 1, &["no socket at nowhere: is `scatter-ring serve` running"]);
}

/// Where nobody listens.
fn endpoint() -> String {
    Endpoint::new(Identity([7; 16]), None, &["127.0.0.1:1".parse().unwrap()]).unwrap().to_string()
}

/// An engine at the socket of a place.
fn serving(place: &Place, peers: Option<PeerSettings>) -> RunningEngine {
    std::fs::set_permissions(place.0.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let engine = Engine::new(&Config { peers, ..Config::default() }).unwrap().start().unwrap();
    engine.listen(&place.path("socket")).unwrap();
    Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    engine
}

#[test]
fn a_peer_that_cannot_be_reached_is_said() {
    let place = all_formats();
    let args = format!("--attach socket --peer {} --export x --row-bytes 24 --rows rows.txt --out out.bin", endpoint());
    let engine = serving(&place, None);
    place.fails(&args, 1, &["this engine has no peers", "--peer-listen"]);
    drop(engine);
    let _engine = serving(&place, Some(PeerSettings::default()));
    place.fails(&args, 1, &["Connection refused"]);
}
