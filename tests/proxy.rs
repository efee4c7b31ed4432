//! The proxy of the tests of faults does what it says.

mod proxied;

use proxied::Effect::{Coalesce, Cut, Deaf, Delay, Dribble, Finish, Flip, Plain, Repeat, Reset, Slow, Stall, Swallow};
use proxied::Way::{Back, There};
use proxied::Which::{All, One};
use proxied::{Effect, Proxy, WAYS, Way};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(10);
/// Enough for loopback, and for two threads to run.
const A_WHILE: Duration = Duration::from_millis(30);

/// A proxy, and the ends of connections through it.
struct Met {
    proxy: Proxy,
    target: TcpListener,
}

struct Pair {
    /// Who connected, and the target's side.
    ends: [TcpStream; 2],
}

fn met() -> Met {
    let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Met { proxy: Proxy::new(target.local_addr().unwrap()), target }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

impl Met {
    fn connect(&self) -> Pair {
        let before = self.proxy.connections();
        let ends = [TcpStream::connect(self.proxy.address()).unwrap(), self.target.accept().unwrap().0];
        eventually("the proxy knows it", || self.proxy.connections() > before);
        for end in &ends {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(LONG)).unwrap();
        }
        Pair { ends }
    }
}

impl Pair {
    fn send(&mut self, way: Way, bytes: &[u8]) {
        self.ends[way as usize].write_all(bytes).unwrap();
    }

    fn receiver(&mut self, way: Way) -> &mut TcpStream {
        &mut self.ends[1 - way as usize]
    }

    fn receive(&mut self, way: Way, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.receiver(way).read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything up to the end, and whether that was a good one.
    fn rest(&mut self, way: Way) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let end = self.receiver(way).read_to_end(&mut bytes);
        if let Err(error) = &end {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        (bytes, end.is_ok())
    }

    /// True if nothing comes for a while.
    fn is_silent(&mut self, way: Way) -> bool {
        let receiver = self.receiver(way);
        receiver.set_read_timeout(Some(A_WHILE)).unwrap();
        let came = receiver.read(&mut [0]);
        receiver.set_read_timeout(Some(LONG)).unwrap();
        came.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Asserts that this much passes as it is.
    fn passes(&mut self, way: Way, len: usize) {
        let bytes = pattern(len);
        let mut sender = self.ends[way as usize].try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&bytes).unwrap());
            assert!(self.receive(way, len) == bytes, "other bytes came");
        });
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "still not: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn without_orders_everything_passes_and_is_counted_and_so_do_both_kinds_of_ends() {
    let met = met();
    let mut pair = met.connect();
    for way in WAYS {
        pair.passes(way, 3_000_000);
        assert_eq!(met.proxy.taken(All, way), 3_000_000);
        eventually("all is counted", || met.proxy.passed(One(0), way) == 3_000_000);
    }
    pair.ends[0].shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(pair.rest(There), (vec![], true));
    pair.passes(Back, 1000);

    let mut other = met.connect();
    assert_eq!(met.proxy.connections(), 2);
    other.passes(There, 5);
    rustix::net::sockopt::set_socket_linger(&other.ends[1], Some(Duration::ZERO)).unwrap();
    let Pair { ends: [near, far] } = other;
    drop(far);
    assert_eq!((&near).read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    eventually("all is counted", || met.proxy.passed(One(1), There) == 5);
    pair.passes(Back, 1000);
}

#[test]
fn who_finds_no_target_is_reset() {
    let Met { proxy, target } = met();
    drop(target);
    let mut near = TcpStream::connect(proxy.address()).unwrap();
    near.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(near.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_cut_is_a_good_end_for_both_and_a_reset_an_error_and_others_stay() {
    let met = met();
    for (number, (effect, is_good)) in [(Cut, true), (Reset, false), (Cut, true)].into_iter().enumerate() {
        let (mut pair, mut other) = (met.connect(), met.connect());
        pair.passes(There, 100);
        met.proxy.apply(One(2 * number), There, effect);
        for way in WAYS {
            assert_eq!(pair.rest(way), (vec![], is_good), "{effect:?} {way:?}");
            other.passes(way, 100);
        }
    }
    let mut pair = met.connect();
    met.proxy.apply(All, Back, Reset);
    assert_eq!(pair.rest(There), (vec![], false));
    met.connect().passes(There, 100);
}

#[test]
fn an_end_comes_behind_the_byte_that_was_named_also_for_a_connection_that_is_still_to_come() {
    let met = met();
    let sent = pattern(100_000);
    for (number, (effect, way, after)) in
        [(Reset, There, 1), (Reset, Back, 65_537), (Cut, Back, 99_999), (Finish, There, 1234)].into_iter().enumerate()
    {
        met.proxy.apply_after(One(number), way, after, effect);
        let mut pair = met.connect();
        pair.passes(way.swapped(), 10);
        pair.send(way, &sent);
        assert_eq!(pair.rest(way), (sent[..after as usize].to_vec(), effect != Reset), "{effect:?}");
        assert_eq!(met.proxy.passed(One(number), way), after);
    }
    let mut pair = met.connect();
    pair.passes(There, 500);
    met.proxy.apply_after(One(4), There, 10, Cut);
    pair.send(There, &sent[..20]);
    assert_eq!(pair.rest(There).0, sent[..10], "counted from now on");
}

impl Way {
    fn swapped(self) -> Way {
        if self == There { Back } else { There }
    }
}

#[test]
fn after_the_end_of_one_direction_the_other_goes_on() {
    let met = met();
    let mut pair = met.connect();
    met.proxy.apply(One(0), There, Finish);
    assert_eq!(pair.rest(There), (vec![], true));
    pair.send(There, &pattern(1000));
    pair.passes(Back, 1_000_000);
    eventually("what comes is thrown away", || met.proxy.taken(One(0), There) == 1000);
    assert_eq!(met.proxy.passed(One(0), There), 0);
}

#[test]
fn a_delay_holds_each_byte_back_and_nothing_else() {
    let met = met();
    let mut pair = met.connect();
    let delay = Duration::from_millis(40);
    met.proxy.apply_both(All, Delay(delay));
    let start = Instant::now();
    pair.passes(There, 1);
    pair.passes(Back, 1);
    assert!(start.elapsed() >= 2 * delay, "{:?}", start.elapsed());
    // Many pieces are on their way at the same time: one after the other they would take ten seconds.
    let start = Instant::now();
    let before = met.proxy.taken(All, There);
    for piece in 0..250 {
        pair.send(There, &[piece]);
        eventually("it comes alone", || met.proxy.taken(All, There) == before + u64::from(piece) + 1);
    }
    assert_eq!(pair.receive(There, 250), (0..250).collect::<Vec<u8>>());
    assert!(start.elapsed() < 125 * delay, "{:?}", start.elapsed());
    // The end comes late too, and behind everything.
    let mut late = met.connect();
    late.send(There, &[1, 2]);
    let start = Instant::now();
    late.ends[0].shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(late.rest(There), (vec![1, 2], true));
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    met.proxy.apply_both(All, Plain);
    met.proxy.apply_both(All, Delay(Duration::from_micros(100)));
    let start = Instant::now();
    for _ in 0..20 {
        pair.passes(There, 1);
    }
    assert!(start.elapsed() >= Duration::from_millis(2), "{:?}", start.elapsed());
}

/// Segments with data that a socket has got.
fn segments(socket: &TcpStream) -> u32 {
    const DATA_SEGMENTS_IN: usize = 152;
    let mut info = [0u8; 256];
    let mut bytes = info.len() as libc::socklen_t;
    let (fd, into) = (socket.as_raw_fd(), info.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most as many bytes as it is told there are.
    let answer = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut bytes) };
    assert!(answer == 0 && bytes as usize >= DATA_SEGMENTS_IN + 4);
    u32::from_ne_bytes(info[DATA_SEGMENTS_IN..][..4].try_into().unwrap())
}

#[test]
fn bytes_go_one_by_one_for_as_long_as_was_said() {
    let met = met();
    let mut pair = met.connect();
    let mut sent = |len| {
        let before = segments(pair.receiver(There));
        pair.passes(There, len);
        segments(pair.receiver(There)) - before
    };
    let whole = sent(100_000);
    met.proxy.apply(One(0), There, Dribble(300));
    let dribbled = sent(100_000);
    assert!((300..300 + 3 * whole).contains(&dribbled), "{whole}, {dribbled}");
    assert!(sent(100_000) < 3 * whole);
}

#[test]
fn small_pieces_are_held_back_until_there_are_enough_or_it_took_too_long() {
    let met = met();
    let mut pair = met.connect();
    let time = Duration::from_secs(60);
    met.proxy.apply(One(0), There, Coalesce { bytes: 100, time });
    for _ in 0..9 {
        pair.send(There, &[7; 11]);
    }
    assert!(pair.is_silent(There));
    pair.send(There, &[8]);
    let mut got = [0; 200];
    assert_eq!(pair.receiver(There).read(&mut got).unwrap(), 100, "all together");
    assert_eq!(got[98..100], [7, 8]);
    met.proxy.apply(One(0), There, Coalesce { bytes: 100, time: A_WHILE });
    let start = Instant::now();
    pair.passes(There, 5);
    assert!(start.elapsed() >= A_WHILE);
    met.proxy.apply(One(0), There, Coalesce { bytes: 100, time });
    pair.send(There, &[9]);
    pair.ends[0].shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(pair.rest(There), (vec![9], true), "nothing is held back at the end");
}

#[test]
fn after_a_stall_everything_comes() {
    let met = met();
    let mut pair = met.connect();
    met.proxy.apply(All, Back, Stall(2 * A_WHILE));
    let start = Instant::now();
    pair.send(Back, &pattern(5000));
    assert!(pair.is_silent(Back));
    assert_eq!(pair.receive(Back, 5000), pattern(5000));
    assert!(start.elapsed() >= 2 * A_WHILE);
    pair.passes(There, 10);
}

#[test]
fn bytes_come_twice_or_changed_at_the_place_that_was_named() {
    let met = met();
    let mut pair = met.connect();
    let sent = pattern(100_000);
    met.proxy.apply_after(One(0), There, 40_000, Repeat(30_000));
    pair.send(There, &sent);
    assert_eq!(pair.receive(There, 130_000), [&sent[..70_000], &sent[40_000..]].concat());
    pair.passes(There, 1000);
    met.proxy.apply_after(One(0), Back, 77, Flip);
    pair.send(Back, &sent);
    let got = pair.receive(Back, 100_000);
    let changed: Vec<usize> = (0..100_000).filter(|i| got[*i] != sent[*i]).collect();
    assert_eq!(changed, [77]);
    pair.passes(Back, 1000);
}

#[test]
fn of_two_black_holes_one_reads_and_one_does_not() {
    let met = met();
    let mut pair = met.connect();
    met.proxy.apply(All, There, Swallow);
    pair.send(There, &pattern(10_000_000));
    assert!(pair.is_silent(There));
    pair.passes(Back, 100);
    eventually("it is thrown away", || met.proxy.taken(All, There) == 10_000_000);
    met.proxy.apply(All, There, Plain);
    pair.passes(There, 100);

    met.proxy.apply(All, There, Deaf);
    let mut later = met.connect();
    later.send(There, &pattern(1000));
    assert!(later.is_silent(There), "it lasts for those that come");
    assert_eq!(met.proxy.taken(One(1), There), 0);
    met.proxy.apply(All, There, Plain);
    assert_eq!(later.receive(There, 1000), pattern(1000), "it was not lost");
    met.connect().passes(There, 10);
}

#[test]
fn a_slow_reader_is_slow() {
    let met = met();
    let mut pair = met.connect();
    met.proxy.apply(One(0), There, Slow { bytes: 10, pause: Duration::from_millis(1) });
    let start = Instant::now();
    pair.passes(There, 400);
    assert!(start.elapsed() >= Duration::from_millis(39), "{:?}", start.elapsed());
}

#[test]
fn without_the_proxy_nothing_is_left() {
    let met = met();
    let mut pairs: Vec<Pair> = (0..5).map(|_| met.connect()).collect();
    met.proxy.apply_both(All, Effect::Deaf);
    let Met { proxy, target } = met;
    let address = proxy.address();
    drop(proxy);
    for pair in &mut pairs {
        assert_eq!((pair.rest(There), pair.rest(Back)), ((vec![], true), (vec![], true)));
    }
    assert!(TcpStream::connect(address).is_err());
    drop(target);
}

/// Also says how fast it is.
#[test]
fn a_short_delay_loses_nothing_of_much_that_passes_fast() {
    let met = met();
    let mut pair = met.connect();
    met.proxy.apply_both(All, Delay(Duration::from_micros(50)));
    let bytes = if cfg!(debug_assertions) { 50_000_000 } else { 2_000_000_000 };
    let (mut sender, start) = (pair.ends[0].try_clone().unwrap(), Instant::now());
    let receiver = pair.receiver(There);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![1; 1 << 20];
            (0..bytes / block.len()).for_each(|_| sender.write_all(&block).unwrap());
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut block = vec![0; 1 << 20];
        let mut got = 0;
        loop {
            match receiver.read(&mut block).unwrap() {
                0 => break,
                count => got += count,
            }
        }
        assert_eq!(got, bytes / block.len() * block.len());
    });
    println!("{:.2} GB/s through the proxy", bytes as f64 / 1e9 / start.elapsed().as_secs_f64());
}
