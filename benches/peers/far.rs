//! W5 from an engine that is 100 us away, beside the same from a region of this one.

use super::place::{File, Place, attach, settings};
use super::proxied::{Effect, Proxy, Which};
use super::work::{How, W5, Work};
use super::{Effort, median};
use scatter_ring::region::Rights;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Of each direction.
const DELAY: Duration = Duration::from_micros(100);
const RTT_US: f64 = 200.0;
/// What a ping-pong sends either way.
const PING_BYTES: usize = 64;
/// What W5 moves.
const STREAM_BYTES: usize = 264 << 10;
const RUNS: usize = 200;

/// Remote less local against two round trips and a fifth of the local gather, with what the proxy adds to the delays.
pub fn far(effort: Effort) {
    let (mut ping, mut stream) = proxy_cost(effort);
    let mut proxy = None;
    let mut place = Place::by_way_of(&settings(), |address| {
        let delaying = proxy.insert(delaying(address));
        delaying.address()
    });
    // Another client of the client's own engine has the table as well.
    let neighbour = attach(&place.engines[0]);
    let table = File::table().register(&neighbour, Rights::READ);
    neighbour.export(&table, "near", Rights::READ).unwrap();
    let near = place.client.open("near", Rights::READ).unwrap();
    let mut remote = Work::new(&mut place, W5, How::read()).verified(&mut place);
    let mut local = Work::with(&place, near, W5, How::read()).verified(&mut place);
    for _ in 0..effort.times(RUNS) {
        remote.round(&mut place.client, 1);
        local.round(&mut place.client, 1);
    }
    remote.print("W5, 100 us away", "");
    local.print("W5, this engine's", "");
    ping.print("ping-pong of 64 B");
    stream.print("64 B, answered by 264 KiB");
    let (more_us, own_us) = (remote.p50_us() - local.p50_us(), stream.own_us());
    let (rtts_us, fifth_us) = (2.0 * RTT_US, 0.2 * local.p50_us());
    let most_us = rtts_us + fifth_us;
    let verdict = |left_us: f64| if left_us <= most_us { "<=" } else { "> " };
    let right = format!("{rtts_us:.1} us (two round trips) + {fifth_us:.1} us (a fifth of local) = {most_us:.1} us");
    println!("  remote - local:                     {more_us:>8.1} us {} {right}", verdict(more_us));
    let left_us = more_us - own_us;
    println!("  remote - local - the proxy's own:   {left_us:>8.1} us {} {right}", verdict(left_us));
}

fn delaying(target: SocketAddr) -> Proxy {
    let proxy = Proxy::new(target);
    proxy.apply_both(Which::All, Effect::Delay(DELAY));
    proxy
}

/// Times of the same exchange without the proxy and through it, in us.
struct Beside {
    plain_us: Vec<f64>,
    through_us: Vec<f64>,
}

impl Beside {
    /// What the proxy takes besides the delays.
    fn own_us(&self) -> f64 {
        median(&self.through_us) - median(&self.plain_us) - RTT_US
    }

    fn print(&mut self, name: &str) {
        let (plain_us, through_us) = (median(&self.plain_us), median(&self.through_us));
        let (own_us, runs) = (self.own_us(), self.plain_us.len());
        println!(
            "  {name:<34} {plain_us:>8.1} us p50, through the proxy {through_us:.1} us: its own {own_us:.1} us  {runs} runs each"
        );
    }
}

/// The ping-pong, and the stream.
fn proxy_cost(effort: Effort) -> (Beside, Beside) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().take(2) {
            let socket = unpaced(socket.unwrap());
            std::thread::spawn(move || answer(socket));
        }
    });
    let proxy = delaying(address);
    let mut plain = unpaced(TcpStream::connect(address).unwrap());
    let mut through = unpaced(TcpStream::connect(proxy.address()).unwrap());
    let [ping, stream] = [PING_BYTES, STREAM_BYTES].map(|bytes| {
        let (mut plain_us, mut through_us) = (Vec::new(), Vec::new());
        exchange(&mut plain, bytes);
        exchange(&mut through, bytes);
        for _ in 0..effort.times(RUNS) {
            plain_us.push(exchange(&mut plain, bytes));
            through_us.push(exchange(&mut through, bytes));
        }
        Beside { plain_us, through_us }
    });
    (ping, stream)
}

/// As the engines' sockets are.
fn unpaced(socket: TcpStream) -> TcpStream {
    socket.set_nodelay(true).unwrap();
    rustix::net::sockopt::set_tcp_congestion(&socket, "reno").unwrap();
    socket
}

/// Answers each question with as many bytes as it asks for.
fn answer(mut socket: TcpStream) {
    let (mut question, bytes) = ([0; PING_BYTES], vec![1; STREAM_BYTES]);
    while socket.read_exact(&mut question).is_ok() {
        let wanted = if question[0] == 0 { PING_BYTES } else { STREAM_BYTES };
        if socket.write_all(&bytes[..wanted]).is_err() {
            return;
        }
    }
}

fn exchange(socket: &mut TcpStream, bytes: usize) -> f64 {
    let (question, mut into) = ([u8::from(bytes > PING_BYTES); PING_BYTES], vec![0; bytes]);
    let start = Instant::now();
    socket.write_all(&question).unwrap();
    socket.read_exact(&mut into).unwrap();
    start.elapsed().as_secs_f64() * 1e6
}
