//! The settings of `scatter-ring serve`: its file, its options, and what is wrong with them.

mod serving;
mod support;

use ring_abi::{Kind, Status};
use scatter_ring::client::Client;
use scatter_ring::region::Rights;
use serving::{Engine, Place, attach, connect, output, refused, scatter_ring, serve, set_mode, text};

#[test]
fn settings_come_from_the_file_and_options_win() {
    let place = Place::new();
    let table = place.file("users.bin", "rows");
    let config = format!(
        "workers = 3\nspin_us = 7\nstop_within_s = 9\nusers = [\"root\", 1234, \"nobody\"]\ntrust = \"sealed\"\n\
         [limits]\nsessions = 5\nregion_bytes = \"4 GiB\"\nheld_bytes = 4096\n[tables]\n\"the users\" = {table:?}\n"
    );
    let checked = |more: &[&str]| {
        let output = output(place.serve(&config).arg("--check-config").args(more));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said: toml::Table = checked(&[]).parse().unwrap();
    let nobody = said["users"][2].as_integer().unwrap();
    assert!(nobody > 1000, "{nobody}");
    let expected = format!(
        "socket = {:?}\nworkers = 3\nspin_us = 7\nstop_within_s = 9\nusers = [0, 1234, {nobody}]\ntrust = \"sealed\"\n\
         read_ahead = true\n[limits]\nsessions = 5\nsessions_per_user = 5\nring_slots = 65536\nregions = 4096\n\
         region_bytes = {}\nbatches = 1024\nheld_bytes = 4096\n[tables]\n\"the users\" = {table:?}\n",
        place.socket(),
        4u64 << 30
    );
    assert_eq!(said, expected.parse().unwrap());
    assert!(!place.socket().exists(), "it has only checked");

    let other = place.file("other.bin", "other rows");
    let option = format!("the users={}", other.display());
    let said: toml::Table =
        checked(&["--workers", "1", "--spin-us", "0", "--clients", "2", "--table", &option]).parse().unwrap();
    assert_eq!((said["workers"].as_integer(), said["spin_us"].as_integer()), (Some(1), Some(0)));
    assert_eq!(said["limits"]["sessions_per_user"].as_integer(), Some(2));
    assert_eq!(said["tables"]["the users"].as_str(), other.to_str());

    // What it prints is a file that says the same.
    let again = place.file("again.toml", &toml::to_string(&said).unwrap());
    let output = output(serve().arg("--check-config").arg("--config").arg(again));
    assert_eq!(text(&output.stdout).parse::<toml::Table>().unwrap(), said, "{}", text(&output.stderr));
}

#[test]
fn peers_are_there_if_the_file_or_an_option_says_anything_of_them() {
    let place = Place::new();
    let key = place.path("key");
    let made = output(scatter_ring().arg("key").arg(&key));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let peers = |config: &str, more: &[&str]| {
        let output = output(place.serve(config).arg("--check-config").args(more));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said: toml::Table = text(&output.stdout).parse().unwrap();
        said.get("peers").map(ToString::to_string)
    };
    assert_eq!(peers("", &[]), None);
    let nowhere = peers("[peers]", &[]).unwrap();
    for part in [
        "listen = []",
        "key_file = \"\"",
        "congestion = \"\"",
        "lanes = 3",
        "slot_bytes = 262144",
        "connections = 64",
        "map_memory = true",
        "transport = \"auto\"",
        "device = \"\"",
    ] {
        assert!(nowhere.contains(part), "{part:?} is not in: {nowhere}");
    }
    let key = key.to_str().unwrap();
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let options = ["--peer-listen", "127.0.0.1:1", "--peer-listen", "[::1]:2", "--peer-keys", key];
    let options = [&options[..], &["--peer-congestion", congestion.trim()]].concat();
    let with_file = "[peers]\nlisten = [\"127.0.0.1:3\"]\nkey_file = \"none\"\ncongestion = \"none\"\nslots = 5\n";
    for (config, slots) in [("", "slots = 16"), (with_file, "slots = 5")] {
        let said = peers(config, &options).unwrap();
        for part in ["listen = [\"127.0.0.1:1\", \"[::1]:2\"]", key, congestion.trim(), slots] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
    }
    for option in [["--peer-listen", "127.0.0.1:0"], ["--peer-keys", key], ["--peer-congestion", congestion.trim()]] {
        assert!(peers("", &option).is_some(), "{option:?}");
    }
    let maps = |config: &str, more: &[&str]| peers(config, more).unwrap().contains("map_memory = true");
    assert!(!maps("", &["--peer-no-mapping"]) && !maps("[peers]\nmap_memory = true", &["--peer-no-mapping"]));
    assert!(!maps("[peers]\nmap_memory = false", &[]) && maps("[peers]\nmap_memory = true", &[]));
    let with_device = "[peers]\ntransport = \"verbs\"\ndevice = \"mlx5_0\"\ndevice_port = 2\ngid_index = 0\n";
    let said = peers(with_device, &["--peer-transport", "tcp", "--peer-device", "rxe0"]).unwrap();
    for part in ["transport = \"tcp\"", "device = \"rxe0\"", "device_port = 2", "gid_index = 0"] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    assert!(peers("", &["--peer-transport", "auto"]).is_some() && peers("", &["--peer-device", "rxe0"]).is_some());
    let reachable = ["--peer-listen", "192.0.2.1:1", "--check-config"];
    refused(
        place.serve("").args(reachable),
        &["192.0.2.1:1 can be reached from other hosts: listening there needs a key"],
    );
    assert!(output(place.serve("").args(reachable).args(["--peer-keys", key])).status.success());
    refused(place.serve("").args(["--peer-listen", "here"]), &["--peer-listen", "invalid socket address"]);
}

#[test]
fn wrong_settings_are_refused_with_file_line_and_key() {
    let place = Place::new();
    place.file("empty", "");
    for (config, parts) in [
        ("\nworkers = 257\n", &["config.toml:2: workers = 257: must be from 0 to 256"][..]),
        ("workers = -1", &[":1: workers = -1: must be from 0 to 256"]),
        ("spin_us = 1_000_001", &[":1: spin_us = 1_000_001: must be from 0 to 1000000"]),
        ("stop_within_s = 3601", &["stop_within_s = 3601: must be from 0 to 3600"]),
        ("workers = \"2\"", &["config.toml: ", "line 1", "workers = \"2\"", "invalid type"]),
        ("workers = 1\nworker = 2", &["line 2", "unknown field `worker`", "`workers`"]),
        ("[limits]\nsession = 2", &["line 2", "unknown field `session`", "`sessions_per_user`"]),
        ("[limits]\nsessions = 0", &[":2: limits.sessions = 0: must be from 1 to 65536"]),
        ("[limits]\nsessions = 65537", &[":2: limits.sessions = 65537: must be from 1 to 65536"]),
        ("[limits]\nsessions_per_user = 0", &["limits.sessions_per_user = 0"]),
        ("[limits]\nring_slots = 3", &["limits.ring_slots = 3: must be from 4 to 1048576"]),
        ("[limits]\nregions = 4097", &["limits.regions = 4097: must be from 1 to 4096"]),
        ("[limits]\nbatches = 1025", &["limits.batches = 1025: must be from 1 to 1024"]),
        ("[limits]\n\nregion_bytes = \"4 potatoes\"", &[":3: limits.region_bytes = \"4 potatoes\": ", "\"4 GiB\""]),
        ("[limits]\nheld_bytes = -1", &[":2: limits.held_bytes = -1: must be from 1 to"]),
        ("[limits]\nheld_bytes = \"0 KiB\"", &["limits.held_bytes = \"0 KiB\": must be from 1 to"]),
        ("users = [1, \"no such one\"]", &[":1: users = \"no such one\": there is no user of this name"]),
        ("users = [-1]", &["line 1", "a user must be a name or a number"]),
        ("trust = \"blind\"", &["line 1", "unknown variant `blind`", "`sealed` or `same-uid`"]),
        ("[tables]\nrows = \"/no/such/file\"", &[":2: tables.rows = \"/no/such/file\": No such file"]),
        ("[tables]\nrows = \"/\"", &[":2: tables.rows = \"/\": is not a file"]),
        ("[tables]\n\"\" = \"/etc/passwd\"", &["a table's name has 1 to 168 bytes"]),
        ("workers = ", &["line 1"]),
        (
            "[peers]\nlisten = [\"localhost:1\"]",
            &[":2: peers.listen = \"localhost:1\": must be an IP address and a port"],
        ),
        ("[peers]\nadvertise = [\"127.0.0.1\"]", &[":2: peers.advertise = \"127.0.0.1\": must be an IP address and"]),
        ("[peers]\nlisten = [\"192.0.2.1:1\"]", &["192.0.2.1:1 can be reached from other hosts", "needs a key file"]),
        ("[peers]\nlisten = [\"0.0.0.0:1\"]", &["0.0.0.0:1 means every address", "`advertise`"]),
        ("[peers]\nkey_file = \"/no/such/key\"", &["key file /no/such/key: No such file"]),
        ("[peers]\nkey_file = \"/etc/passwd\"", &["key file /etc/passwd: is open to its group or to others"]),
        ("[peers]\ncongestion = \"none\"", &["congestion control \"none\""]),
        ("[peers]\nlanes = 0", &[":2: peers.lanes = 0: must be from 1 to 16"]),
        ("[peers]\nlanes = 17", &["peers.lanes = 17"]),
        ("[peers]\nslots = 1025", &["peers.slots = 1025: must be from 1 to 1024"]),
        ("[peers]\nowner_slots = 4097", &["peers.owner_slots = 4097"]),
        ("[peers]\nconnections = 0", &["peers.connections = 0"]),
        ("[peers]\nslot_bytes = \"5000 MiB\"", &["peers.slot_bytes = \"5000 MiB\""]),
        ("[peers]\nslot_bytes = \"8 KiB\"", &["slot_bytes: 8192, must be from 16384 to 16777216"]),
        ("[peers]\nslot_bytes = 16385", &["slot_bytes: 16385, must be a multiple of 4096"]),
        ("[peers]\ndead_after = 1", &["unknown field `dead_after`"]),
        ("[peers]\ntransport = \"pigeon\"", &["line 2", "unknown variant `pigeon`", "one of `auto`, `verbs`, `tcp`"]),
        ("[peers]\ndevice_port = 256", &[":2: peers.device_port = 256: must be from 0 to 255"]),
        ("[peers]\ngid_index = 256", &[":2: peers.gid_index = 256: must be from -1 to 255"]),
        ("[peers]\ntransport = \"verbs\"\ndevice = \"none\"", &["peers: transport = \"verbs\": ", "RDMA"]),
    ] {
        refused(place.serve(config).arg("--check-config"), parts);
        refused(&mut place.serve(config), parts);
    }
    let empty = format!("rows={}", place.path("empty").display());
    refused(place.serve("").args(["--table", &empty]), &["--table rows=", "is empty"]);
    refused(place.serve("").args(["--table", "rows=/etc/passwd", "--table", "rows=/etc/group"]), &["given before"]);
    refused(place.serve("").args(["--table", "rows"]), &["must be NAME=FILE"]);
    refused(place.serve("").args(["--log", "poem"]), &["text, json"]);
    refused(place.serve("").env("RUST_LOG", "a=b=c"), &["RUST_LOG=a=b=c"]);
    refused(place.serve("").arg("--config").arg(place.path("none.toml")), &["none.toml: No such file"]);
}

#[test]
fn a_socket_that_could_not_be_listened_on_fails_the_check() {
    let place = Place::new();
    let inner = place.path("inner");
    let check = |config: &str| {
        let mut command = serve();
        command.arg("--check-config").arg("--socket").arg(inner.join("socket"));
        command.arg("--config").arg(place.file("config.toml", config));
        command
    };
    assert!(output(&mut check("")).status.success());
    assert!(!inner.exists(), "a check makes nothing");
    std::fs::create_dir(&inner).unwrap();
    for (mode, config, is_right) in [
        (0o700, "", true),
        (0o700, "users = [1234]", true),
        (0o750, "users = [1234]", true),
        (0o750, "", false),
        (0o755, "users = [1234]", false),
        (0o770, "users = [1234]", false),
    ] {
        set_mode(&inner, mode);
        if is_right {
            assert!(output(&mut check(config)).status.success(), "{mode:o} {config}");
        } else {
            refused(&mut check(config), &["is open to other users", "0700"]);
        }
    }
    set_mode(&inner, 0o700);
    let mut engine = Engine::start(serve().arg("--socket").arg(inner.join("socket")));
    assert!(output(&mut check("")).status.success(), "an engine that serves there is no reason against it");
    let log = engine.log();
    engine.stopped(log);
    std::fs::write(inner.join("socket"), "").unwrap();
    refused(&mut check(""), &["exists and is not a socket"]);
    let long = place.path(&"x".repeat(108));
    refused(serve().arg("--check-config").arg("--socket").arg(long), &["socket path"]);
}

/// The keys of a file, with their sections.
fn keys(table: &toml::Table) -> Vec<String> {
    let mut all = Vec::new();
    for (key, value) in table {
        all.push(key.clone());
        all.extend(value.as_table().into_iter().flat_map(keys).map(|inner| format!("{key}.{inner}")));
    }
    all.sort();
    all
}

#[test]
fn the_example_file_has_every_key_with_its_default() {
    let example = include_str!("../dist/scatter-ring.toml");
    // A line `#key = value` is a key, and `#[section]` a section that changes something even if it is empty; text for
    // people has a space behind the mark.
    let is_key =
        |line: &&str| line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    assert!(example.lines().filter(is_key).count() > 10);
    let lines = example.lines().map(|line| if is_key(&line) { &line[1..] } else { line });
    let uncommented = lines.collect::<Vec<_>>().join("\n");
    let place = Place::new();
    let check = |config: &str| {
        let output = output(place.serve(config).args(["--workers", "1", "--check-config"]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(check(example), check(""), "as it is, it changes nothing");
    let defaults = check("[peers]");
    assert_ne!(defaults, check(""));
    assert_eq!(check(&uncommented), defaults);
    assert_eq!(keys(&uncommented.parse().unwrap()), keys(&defaults.parse().unwrap()));
}

#[test]
fn limits_of_the_file_are_enforced_and_named() {
    let place = Place::new();
    let config =
        "[limits]\nsessions = 3\nsessions_per_user = 2\nring_slots = 64\nregions = 2\nregion_bytes = \"1 MiB\"\n";
    let mut engine = Engine::start(&mut place.serve(config));
    let mut first = attach(&place.socket());
    let over = connect(&place.socket());
    over.send(&ring_abi::Message::hello(ring_abi::Features(0), 128, 64, 0), &[]).unwrap();
    let answer = over.receive(true).unwrap().unwrap().message;
    assert_eq!(answer.name(), "SQ capacity 128: at most 64 (limit ring_slots)");

    first.memory(1 << 19, Rights::READ_WRITE);
    let too_much = (1 << 19) + 4096;
    let (_region, fd) = scatter_ring::region::Region::allocate(too_much, scatter_ring::region::Huge::Never).unwrap();
    let answer = first.ask(Kind::REGISTER, &[too_much, 3], "", &[std::os::fd::AsFd::as_fd(&fd)]);
    assert!(answer.name().ends_with("at most 1048576 (limit region_bytes)"), "{}", answer.name());
    first.memory(4096, Rights::READ);
    let (_region, fd) = scatter_ring::region::Region::allocate(4096, scatter_ring::region::Huge::Never).unwrap();
    let answer = first.ask(Kind::REGISTER, &[4096, 1], "", &[std::os::fd::AsFd::as_fd(&fd)]);
    assert_eq!((answer.status, answer.name()), (Status::LIMIT_EXCEEDED, "2 regions (limit regions)"));

    let _second = attach(&place.socket());
    let error = Client::attach(place.socket()).unwrap_err().to_string();
    assert!(error.contains("has 2 sessions already (limit sessions_per_user)"), "{error}");
    let log = engine.log();
    assert!(engine.stopped(log).contains("refused=\"LIMIT_EXCEEDED 4\""));
}
