//! What a descriptor costs the raw producer in Rust: NOPs in batches of 32, pushed, submitted and reaped. `rate.cpp` is the
//! same in C++. Arguments: the socket of `scatter-ring serve`, and how many descriptors.

use ring_abi::{Descriptor, Flags, Opcode};
use scatter_ring::client::Client;
use std::error::Error;
use std::time::Instant;

const PER_BATCH: u64 = 32;
/// Batches under way: a quarter of a ring of descriptors, and an eighth of what the spans have room for.
const IN_FLIGHT: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: rate SOCKET DESCRIPTORS";
    let mut args = std::env::args_os().skip(1);
    let socket = args.next().ok_or(usage)?;
    let descriptors: u64 = args.next().and_then(|n| n.to_str()?.parse().ok()).ok_or(usage)?;
    let descriptors = descriptors.next_multiple_of(PER_BATCH);
    let mut client = Client::attach(&socket)?;
    work(&mut client, descriptors.min(1 << 17))?;
    let start = Instant::now();
    work(&mut client, descriptors)?;
    let time = start.elapsed();
    println!("rust ns_per_descriptor {:.2}", time.as_nanos() as f64 / descriptors as f64);
    Ok(())
}

fn work(client: &mut Client, descriptors: u64) -> Result<(), Box<dyn Error>> {
    let (mut pushed, mut done) = (0, 0);
    while done < descriptors {
        while pushed < descriptors && pushed - done < IN_FLIGHT * PER_BATCH {
            for i in 0..PER_BATCH {
                let descriptor = Descriptor {
                    opcode: Opcode::NOP.0,
                    flags: if i + 1 == PER_BATCH { Flags::LAST } else { 0 },
                    user_data: pushed + i,
                    ..Descriptor::ZERO
                };
                // SAFETY: the descriptor names no memory.
                unsafe { client.push(&descriptor)? };
            }
            client.submit()?;
            pushed += PER_BATCH;
        }
        while let Some(span) = client.reap()? {
            if !span.status().is_ok() || u64::from(span.count) != PER_BATCH {
                return Err("a span that is no success".into());
            }
            done += PER_BATCH;
        }
    }
    Ok(())
}
