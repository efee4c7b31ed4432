//! A wire between two links: it dribbles, coalesces, delays and is cut, by whoever pumps it.

use super::{Side, sockets};
use crate::seeded::Random;
use scatter_ring::link::tcp::Limits;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// One byte at a time.
    Dribble,
    /// A random number of bytes, up to this.
    Pieces(usize),
    /// Nothing for some turns, and then all that there is.
    Coalesce(u32),
}

/// One lane's.
pub struct Wire {
    ways: [Way; 2],
    manner: Manner,
    /// Turns since it was cut in one direction. In the other one it goes on for a while.
    cut_turns: u32,
}

struct Way {
    from: TcpStream,
    to: TcpStream,
    waiting: VecDeque<u8>,
    turns: u32,
    passed: u64,
    /// Bytes after which the wire is cut.
    cut_after: u64,
}

impl Wire {
    pub fn pair(lanes: usize, limits: &Limits, buffer_bytes: Option<usize>, manner: Manner) -> (Side, Side, Vec<Wire>) {
        let (mut a, mut b, mut wires) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..lanes {
            let ((near, from_a), (from_b, far)) = (sockets(buffer_bytes), sockets(buffer_bytes));
            for socket in [&from_a, &from_b] {
                socket.set_nonblocking(true).unwrap();
                socket.set_nodelay(true).unwrap();
            }
            let way = |from: &TcpStream, to: &TcpStream| Way {
                from: from.try_clone().unwrap(),
                to: to.try_clone().unwrap(),
                waiting: VecDeque::new(),
                turns: 0,
                passed: 0,
                cut_after: u64::MAX,
            };
            wires.push(Wire { ways: [way(&from_a, &from_b), way(&from_b, &from_a)], manner, cut_turns: 0 });
            a.push(near);
            b.push(far);
        }
        (Side::new(a, limits), Side::new(b, limits), wires)
    }

    /// Cuts it after so many bytes from the first side, or from the second.
    pub fn cut_after(&mut self, way: usize, bytes: u64) {
        self.ways[way].cut_after = bytes;
    }

    /// Bytes that have gone each way.
    pub fn passed(&self) -> [u64; 2] {
        self.ways.each_ref().map(|way| way.passed)
    }

    pub fn pump(&mut self, random: &mut Random) {
        for _ in 0..64 {
            for way in &mut self.ways {
                way.pump(self.manner, random);
            }
        }
        self.cut_turns += u32::from(self.ways.iter().any(|way| way.passed == way.cut_after));
        if self.cut_turns > 5 {
            for way in &self.ways {
                let _ = way.to.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Way {
    fn pump(&mut self, manner: Manner, random: &mut Random) {
        let most = match manner {
            Manner::Dribble => 1,
            Manner::Pieces(most) => 1 + random.below(most as u64) as usize,
            Manner::Coalesce(turns) => {
                self.turns += 1;
                if !self.turns.is_multiple_of(turns) {
                    return;
                }
                usize::MAX
            }
        };
        let mut some = [0; 4096];
        // It holds as much as a network does.
        if self.waiting.len() < 64 << 10
            && let Ok(count) = self.from.read(&mut some[..most.min(4096)])
        {
            self.waiting.extend(&some[..count]);
        }
        let most = (most as u64).min(self.cut_after - self.passed);
        let some = self.waiting.make_contiguous();
        let count = self.to.write(&some[..some.len().min(most as usize)]).unwrap_or(0);
        self.waiting.drain(..count);
        self.passed += count as u64;
    }
}
